"""An attempt under way in this process: the code of a workflow, its replay, its operations, and what becomes of it."""
