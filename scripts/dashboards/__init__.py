"""Writes the Grafana dashboards of observability/grafana/dashboards."""
