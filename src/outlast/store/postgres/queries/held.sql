-- held: the leases that hang on a worker's sessions in some partitions, by the index of leases.
SELECT x.namespace, x.id, x.epoch, x.inbox FROM outlast.execution AS x
WHERE x.worker = :worker AND x.partition = ANY (:partitions::int[])
