//go:build machine

package e2e

import "github.com/microlet/microlet/compose/rig"

const onMachine = true

var besidesThere = []string{rig.GroupKubelet}
