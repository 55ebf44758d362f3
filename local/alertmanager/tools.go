//go:build tools

// Package alertmanager pins the version of Alertmanager and amtool that the tests of the alerts run; it has no code of its own.
package alertmanager

import (
	_ "github.com/prometheus/alertmanager/cmd/alertmanager"
	_ "github.com/prometheus/alertmanager/cmd/amtool"
)
