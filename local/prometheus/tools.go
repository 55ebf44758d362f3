//go:build tools

// Package prometheus pins the version of Prometheus and promtool that local mode builds; it has no code of its own.
package prometheus

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/prometheus/prometheus/cmd/promtool"
)
