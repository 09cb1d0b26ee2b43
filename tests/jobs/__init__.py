"""Tests of runs on a cluster through Ray's Jobs API."""
