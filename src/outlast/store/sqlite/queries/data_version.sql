-- Whether another connection has committed since this one last asked: the number is another one then.
PRAGMA data_version
