-- The large tables, each in hash partitions by the column `partition`. Not a migration: for a new store, after
-- `outlast migrate` and before its first use, run it as the owner:
--
--   psql "$OWNER_URL" -v parts=16 -f partitioned.sql
--
-- Then `roles.sql` again, if you use it: the tables are new ones. Statements stay the same. Keys, indexes and views keep their names; `outlast doctor` finds them all.

SELECT set_config('outlast.parts', :'parts', false);

DO $do$
DECLARE
  v_table text;
  v_found record;
  v_later text[] := '{}';
  v_options text;
BEGIN
  IF current_setting('outlast.parts')::int NOT BETWEEN 1 AND 256 THEN
    RAISE EXCEPTION 'parts must be between 1 and 256, not %', current_setting('outlast.parts');
  END IF;
  IF EXISTS (SELECT 1 FROM pg_catalog.pg_class AS c WHERE c.oid = 'outlast.execution'::regclass AND c.relkind = 'p') THEN
    RAISE EXCEPTION 'the tables are partitioned already';
  END IF;
  FOR v_found IN SELECT v.viewname, v.definition FROM pg_catalog.pg_views AS v WHERE v.schemaname = 'outlast' LOOP
    v_later := v_later || format('CREATE VIEW outlast.%I AS %s', v_found.viewname, v_found.definition);
  END LOOP;
  FOREACH v_table IN ARRAY ARRAY['execution', 'payload', 'journal', 'attempt'] LOOP
    EXECUTE format('LOCK TABLE outlast.%I', v_table);
    EXECUTE format('SELECT 1 FROM outlast.%I LIMIT 1', v_table) INTO v_found;
    IF v_found IS NOT NULL THEN
      RAISE EXCEPTION 'outlast.% is not empty: this is for a new store', v_table;
    END IF;
    FOR v_found IN
      SELECT pg_get_indexdef(i.indexrelid) AS made FROM pg_catalog.pg_index AS i
      WHERE i.indrelid = format('outlast.%I', v_table)::regclass AND NOT i.indisprimary
    LOOP
      v_later := v_found.made || v_later;
    END LOOP;
    FOR v_found IN
      SELECT c.conname, pg_get_constraintdef(c.oid) AS made FROM pg_catalog.pg_constraint AS c
      WHERE c.conrelid = format('outlast.%I', v_table)::regclass AND c.contype = 'p'
    LOOP
      v_later := format('ALTER TABLE outlast.%I ADD CONSTRAINT %I %s', v_table, v_found.conname, v_found.made) || v_later;
    END LOOP;
    SELECT coalesce(' WITH (' || array_to_string(c.reloptions, ', ') || ')', '') INTO v_options
    FROM pg_catalog.pg_class AS c WHERE c.oid = format('outlast.%I', v_table)::regclass;
    EXECUTE format('ALTER TABLE outlast.%I RENAME TO replaced', v_table);
    EXECUTE format('CREATE TABLE outlast.%I (LIKE outlast.replaced INCLUDING DEFAULTS) PARTITION BY HASH (partition)', v_table);
    DROP TABLE outlast.replaced CASCADE;
    FOR part IN 0..current_setting('outlast.parts')::int - 1 LOOP
      EXECUTE format('CREATE TABLE outlast.%I PARTITION OF outlast.%I FOR VALUES WITH (MODULUS %s, REMAINDER %s)%s',
        v_table || '_' || part, v_table, current_setting('outlast.parts'), part, v_options);
    END LOOP;
  END LOOP;
  FOR number IN 1..cardinality(v_later) LOOP
    EXECUTE v_later[number];
  END LOOP;
END
$do$;
