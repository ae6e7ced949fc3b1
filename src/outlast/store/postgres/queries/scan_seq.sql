-- scan_seq: where a page of a sequenced kind goes on: the number of the record that it ended with.
SELECT x.seq FROM outlast.{kind} AS x WHERE {prefix}
