package threshold

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/services/evictor/internal/signal"
)

// Config is what the kubelet's configuration says of thresholds: by signal, quantities or percentages.
type Config struct {
	Hard, Soft, MinimumReclaim map[string]string
	// SoftGracePeriod has durations.
	SoftGracePeriod map[string]string
	// EnforcePods says that enforceNodeAllocatable has "pods": the hard threshold of memory.available then also guards
	// the cgroup of all pods.
	EnforcePods bool
}

// Parse returns the thresholds, hard ones first, each list by signal. 0% and 100% turn a signal off. The error joins
// all that is wrong, each with its field, its value and what would be right.
func Parse(c Config) ([]Threshold, error) {
	hard, err := parseThresholds("evictionHard", c.Hard)
	errs := []error{err}
	soft, err := parseThresholds("evictionSoft", c.Soft)
	errs = append(errs, err)
	for i, t := range soft {
		grace, err := gracePeriod(t.Signal, c.SoftGracePeriod)
		errs = append(errs, err)
		soft[i].Grace = grace
	}
	reclaims := map[signal.Signal]Value{}
	for _, name := range slices.Sorted(maps.Keys(c.MinimumReclaim)) {
		field := "evictionMinimumReclaim." + name
		s, err := parseSignal(field, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		value, err := parseValue(field, c.MinimumReclaim[name], true)
		errs = append(errs, err)
		reclaims[s] = value
	}
	all := slices.Concat(hard, soft)
	for i := range all {
		all[i].MinReclaim = reclaims[all[i].Signal]
	}
	if c.EnforcePods {
		for _, t := range hard {
			if t.Signal == signal.MemoryAvailable {
				t.Signal, t.MinReclaim = signal.AllocatableMemoryAvailable, reclaims[t.Signal]
				all = append(all, t)
			}
		}
	}
	return all, errors.Join(errs...)
}

func parseThresholds(field string, statements map[string]string) ([]Threshold, error) {
	var all []Threshold
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(statements)) {
		text, at := statements[name], field+"."+name
		s, err := parseSignal(at, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if text == "0%" || text == "100%" {
			continue
		}
		value, err := parseValue(at, text, false)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, Threshold{Signal: s, Value: value})
	}
	return all, errors.Join(errs...)
}

func parseSignal(field, name string) (signal.Signal, error) {
	s := signal.Signal(name)
	if s.Resource() == "" {
		return "", fmt.Errorf("%s: %q is no eviction signal, write one of %v", field, name, signal.All())
	}
	return s, nil
}

// parseValue reads a quantity or a percentage. A threshold is above 0 and at most 100%; a reclaim may be the quantity
// 0, and more than 100%.
func parseValue(field, text string, reclaim bool) (Value, error) {
	if number, ok := strings.CutSuffix(text, "%"); ok {
		percent, err := strconv.ParseFloat(number, 32)
		least := percent >= 0
		if reclaim {
			least = percent > 0
		}
		if err != nil || !least || !(percent <= 100) && !(reclaim && percent <= math.MaxInt32) {
			return Value{}, fmt.Errorf("%s is %q: write a percentage above 0%% and up to 100%%, such as 10%%", field, text)
		}
		return Value{Percentage: float32(percent) / 100}, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 || q.Sign() == 0 && !reclaim {
		return Value{}, fmt.Errorf("%s is %q: write a positive quantity such as 500Mi, or a percentage such as 10%%", field,
			text)
	}
	return Value{Quantity: &q}, nil
}

func gracePeriod(s signal.Signal, periods map[string]string) (time.Duration, error) {
	field := "evictionSoftGracePeriod." + string(s)
	text, ok := periods[string(s)]
	if !ok {
		return 0, fmt.Errorf("%s is missing: a soft threshold needs one, such as 1m30s", field)
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s is %q: write a duration such as 1m30s", field, text)
	}
	return d, nil
}
