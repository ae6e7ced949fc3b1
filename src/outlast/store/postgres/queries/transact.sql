-- transact: begins a transaction in which a user's function runs. Whatever happens to the process, the server ends a
-- statement of it after `limit_ms`; earlier if the role says so.
SELECT set_config('statement_timeout', CASE
    WHEN current_setting('statement_timeout') = '0' THEN '{limit_ms}ms'
    ELSE least(current_setting('statement_timeout')::interval, '{limit_ms}ms'::interval)::text END, true)
