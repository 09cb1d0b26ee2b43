"""Runs on a cluster through Ray's Jobs API: submit, look at, stop and fetch them from anywhere.

On the cluster run `versions`, `marks`, `entry` and `archive`; the first and the last know only the standard library.
"""
