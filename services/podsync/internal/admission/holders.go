package admission

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
)

// namedHolders is how many pods a message names.
const namedHolders = 5

// holders says which pods have a resource that a resize wants more of. Who may read the pod learns the names of pods of
// its own namespace alone.
func holders(a *Attributes, name v1.ResourceName) string {
	type holder struct {
		name   string
		amount int64
	}
	var own []holder
	var elsewhere int64
	for i, other := range a.Others {
		amount := podutil.Amount(name, a.requestsOf(i)[name])
		switch {
		case amount == 0:
		case other.Namespace == a.Pod.Namespace:
			own = append(own, holder{other.Name, amount})
		default:
			elsewhere = podutil.AddAmounts(elsewhere, amount)
		}
	}
	slices.SortFunc(own, func(x, y holder) int {
		return cmp.Or(cmp.Compare(y.amount, x.amount), strings.Compare(x.name, y.name))
	})
	var parts []string
	var rest int64
	for i, h := range own {
		if i < namedHolders {
			parts = append(parts, fmt.Sprintf("%s: %d", h.name, h.amount))
		} else {
			rest = podutil.AddAmounts(rest, h.amount)
		}
	}
	if more := len(own) - namedHolders; more > 0 {
		parts = append(parts, fmt.Sprintf("%d more of the namespace: %d", more, rest))
	}
	if elsewhere > 0 {
		parts = append(parts, fmt.Sprintf("other namespaces: %d", elsewhere))
	}
	if len(parts) == 0 {
		return ""
	}
	return " (used by " + strings.Join(parts, ", ") + ")"
}
