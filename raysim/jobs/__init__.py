"""Jobs on a Ray cluster, through Ray's Jobs API: submit, list, follow, stop and fetch runs from any machine.

`entry`, `job_log` and `archive` run on the cluster; `archive` imports only the standard library.
"""
