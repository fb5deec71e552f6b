//go:build bench

package e2e

import "github.com/microlet/microlet/compose/rig"

// SteadyPods are those of a scenario's begin; the bench has none.
const SteadyPods = 0

// The kubelet is measured first, on a machine that has run nothing else.
const FirstAgent = rig.AgentKubelet

// besides are groups of programs that the rig has for these scenarios.
var besides []string
