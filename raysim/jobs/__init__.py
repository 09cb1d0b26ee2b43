"""Jobs on a Ray cluster, through Ray's Jobs API: submit, list, follow, stop and fetch runs from any machine.

`versions`, `job_log`, `stopping`, `entry` and `archive` run on the cluster; `versions` and `archive` import only what
every Ray cluster has.
"""
