"""Jobs on a Ray cluster, through Ray's Jobs API: submit, list, follow, stop and fetch runs from any machine.

`entry` and `job_log` run on the cluster, and so does `common.archive`.
"""
