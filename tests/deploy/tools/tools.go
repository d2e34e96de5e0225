//go:build tools

package tools

import (
	_ "github.com/compose-spec/compose-go/v2/cmd"
	_ "github.com/prometheus/prometheus/cmd/promtool"
)
