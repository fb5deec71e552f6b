package kubeletconfig

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	netutils "k8s.io/utils/net"
)

var (
	_ pflag.Value = (*ipValue)(nil)
	_ pflag.Value = (*taintsValue)(nil)
	_ pflag.Value = (*reservedMemoryValue)(nil)
	_ pflag.Value = (*versionValue)(nil)
)

// ipValue is an IP address; the empty string leaves the field as it is.
type ipValue struct{ into *string }

func (v *ipValue) Set(s string) error {
	if s == "" {
		return nil
	}
	if netutils.ParseIPSloppy(s) == nil {
		return fmt.Errorf("%q is not an IP address, such as 10.0.0.1 or ::1", s)
	}
	*v.into = s
	return nil
}

func (v *ipValue) String() string { return *v.into }
func (*ipValue) Type() string     { return "ip" }

// taintsValue is a list of key=value:effect or key:effect. The last use of the flag counts.
type taintsValue struct{ into *[]corev1.Taint }

func (v *taintsValue) Set(s string) error {
	if s == "" {
		*v.into = nil
		return nil
	}
	var taints []corev1.Taint
	for spec := range strings.SplitSeq(s, ",") {
		taint, err := parseTaint(spec)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
			return fmt.Errorf("taint %q is given twice for the same effect", taint.Key)
		}
		taints = append(taints, taint)
	}
	*v.into = taints
	return nil
}

func parseTaint(spec string) (corev1.Taint, error) {
	keyValue, effect, ok := strings.Cut(spec, ":")
	if !ok {
		return corev1.Taint{},
			fmt.Errorf("taint %q has no effect: write key=value:NoSchedule, PreferNoSchedule or NoExecute", spec)
	}
	key, value, _ := strings.Cut(keyValue, "=")
	taint := corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
	if why := taintProblem(taint); why != "" {
		return corev1.Taint{}, fmt.Errorf("taint %q: %s", spec, why)
	}
	return taint, nil
}

// taintProblem says what is wrong with t, or nothing.
func taintProblem(t corev1.Taint) string {
	if errs := validation.IsQualifiedName(t.Key); len(errs) > 0 {
		return fmt.Sprintf("key %q: %s", t.Key, strings.Join(errs, "; "))
	}
	if errs := validation.IsValidLabelValue(t.Value); len(errs) > 0 {
		return fmt.Sprintf("value %q: %s", t.Value, strings.Join(errs, "; "))
	}
	switch t.Effect {
	case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		return ""
	default:
		return fmt.Sprintf("effect %q is none of NoSchedule, PreferNoSchedule, NoExecute", t.Effect)
	}
}

func (v *taintsValue) String() string {
	specs := make([]string, 0, len(*v.into))
	for _, t := range *v.into {
		specs = append(specs, fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect))
	}
	return strings.Join(specs, ",")
}

func (*taintsValue) Type() string { return "[]v1.Taint" }

// reservedMemoryValue is numaNode:type=quantity,type=quantity, joined by semicolons or repeated.
type reservedMemoryValue struct {
	into *[]kubeletv1beta1.MemoryReservation
	used bool // the first use drops what the file said
}

func (v *reservedMemoryValue) Set(s string) error {
	if s == "" {
		return nil
	}
	var reservations []kubeletv1beta1.MemoryReservation
	for spec := range strings.SplitSeq(s, ";") {
		node, limits, ok := strings.Cut(spec, ":")
		if !ok {
			return fmt.Errorf("%q has no NUMA node: write 0:memory=1Gi", spec)
		}
		number, err := strconv.ParseInt(node, 10, 32)
		if err != nil || number < 0 {
			return fmt.Errorf("NUMA node %q is not a whole number from 0", node)
		}
		reservation := kubeletv1beta1.MemoryReservation{NumaNode: int32(number), Limits: corev1.ResourceList{}}
		for limit := range strings.SplitSeq(limits, ",") {
			name, amount, ok := strings.Cut(limit, "=")
			if !ok {
				return fmt.Errorf("%q is not type=quantity: write memory=1Gi or hugepages-1Gi=2Gi", limit)
			}
			if !reservableMemory(corev1.ResourceName(name)) {
				return fmt.Errorf("memory type %q is neither memory nor hugepages-<size>", name)
			}
			quantity, err := resource.ParseQuantity(amount)
			if err != nil {
				return fmt.Errorf("quantity %q of %s: %w", amount, name, err)
			}
			reservation.Limits[corev1.ResourceName(name)] = quantity
		}
		reservations = append(reservations, reservation)
	}
	if !v.used {
		v.used, *v.into = true, nil
	}
	*v.into = append(*v.into, reservations...)
	return nil
}

func reservableMemory(name corev1.ResourceName) bool {
	return name == corev1.ResourceMemory || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func (v *reservedMemoryValue) String() string {
	var specs []string
	for _, r := range *v.into {
		var limits []string
		for name, quantity := range r.Limits {
			limits = append(limits, fmt.Sprintf("%s=%s", name, quantity.String()))
		}
		slices.Sort(limits)
		specs = append(specs, fmt.Sprintf("%d:%s", r.NumaNode, strings.Join(limits, ",")))
	}
	slices.Sort(specs)
	return strings.Join(specs, ",")
}

func (*reservedMemoryValue) Type() string { return "reserved-memory" }

// versionValue is true, raw or a version that starts with v. "false" is as if the flag were not given.
type versionValue string

func (v *versionValue) Set(s string) error {
	if s == "raw" || strings.HasPrefix(s, "v") {
		*v = versionValue(s)
		return nil
	}
	asked, err := strconv.ParseBool(s)
	if err != nil {
		return fmt.Errorf("%q is none of true, false, raw, vX.Y.Z", s)
	}
	*v = ""
	if asked {
		*v = "true"
	}
	return nil
}

func (v *versionValue) String() string {
	if *v == "" {
		return "false"
	}
	return string(*v)
}

func (*versionValue) Type() string { return "version" }
