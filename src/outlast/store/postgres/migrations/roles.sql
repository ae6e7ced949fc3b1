-- The least that Outlast needs, for a role that may not change the schema. Not a migration: run it with psql, as the
-- owner of the database, after `outlast migrate`:
--
--   psql "$OWNER_URL" -v role=outlast_app -f roles.sql
--
-- Run it again after each migration: functions of a new release are new functions.

GRANT USAGE ON SCHEMA outlast TO :"role";
GRANT SELECT ON outlast.meta TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA outlast TO :"role";
REVOKE INSERT, UPDATE, DELETE ON outlast.meta FROM :"role";
GRANT SELECT, UPDATE, USAGE ON ALL SEQUENCES IN SCHEMA outlast TO :"role";
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outlast TO :"role";
