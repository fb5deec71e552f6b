package manifest

import (
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of the resolver's configuration, as the API has them.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048
	maxHostname    = 64
)

// check collects what is wrong with a pod.
type check struct {
	pod *v1.Pod
	// api says that the pod is one of the API, or would be: it has been admitted there, and may run already.
	api  bool
	errs field.ErrorList
}

// validate says what the API server would refuse of a pod that has its defaults and, unless it is one of the API, what
// a static pod may not have.
func validate(p *v1.Pod, api bool) field.ErrorList {
	c := &check{pod: p, api: api}
	c.errs = append(c.errs,
		apivalidation.ValidateObjectMeta(&p.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))...)
	if errs := validation.IsDNS1123Label(p.Namespace); len(errs) > 0 &&
		!slices.ContainsFunc(c.errs, func(e *field.Error) bool { return e.Field == "metadata.namespace" }) {
		c.invalid(field.NewPath("metadata", "namespace"), p.Namespace, errs...)
	}
	spec := field.NewPath("spec")
	c.annotations(field.NewPath("metadata", "annotations"))
	c.finalizers(field.NewPath("metadata", "finalizers"))
	c.agreement(spec)
	c.placement(spec)
	c.network(spec)
	c.podSecurity(spec)
	volumes := c.volumes(spec.Child("volumes"))
	c.containers(spec, volumes)
	if len(p.Spec.EphemeralContainers) > 0 && !api {
		c.forbidden(spec.Child("ephemeralContainers"), "nothing can be debugged before it runs: remove it")
	}
	if len(c.errs) == 0 && !api {
		c.references(spec)
	}
	return c.errs
}

func (c *check) add(e *field.Error) { c.errs = append(c.errs, e) }

func (c *check) invalid(at *field.Path, value any, messages ...string) {
	for _, m := range messages {
		c.add(field.Invalid(at, value, m))
	}
}

func (c *check) required(at *field.Path, remedy string)  { c.add(field.Required(at, remedy)) }
func (c *check) forbidden(at *field.Path, remedy string) { c.add(field.Forbidden(at, remedy)) }
func (c *check) duplicate(at *field.Path, value any)     { c.add(field.Duplicate(at, value)) }
func (c *check) notNegative(at *field.Path, n int64) {
	if n < 0 {
		c.invalid(at, n, "must not be negative")
	}
}

// oneOf refuses a value that is not in the list.
func oneOf[T ~string](c *check, at *field.Path, value T, known ...T) {
	if !slices.Contains(known, value) {
		c.add(field.NotSupported(at, value, known))
	}
}

// oneOfSet is oneOf for a field that may be left out.
func oneOfSet[T ~string](c *check, at *field.Path, value *T, known ...T) {
	if value != nil {
		oneOf(c, at, *value, known...)
	}
}

// placement is what the pod says of its node, its life and its place in the scheduler.
func (c *check) placement(at *field.Path) {
	s := &c.pod.Spec
	c.invalid(at.Child("nodeName"), s.NodeName, validation.IsDNS1123Subdomain(s.NodeName)...)
	oneOf(c, at.Child("restartPolicy"), s.RestartPolicy, v1.RestartPolicyAlways, v1.RestartPolicyOnFailure,
		v1.RestartPolicyNever)
	if s.ActiveDeadlineSeconds != nil && (*s.ActiveDeadlineSeconds < 1 || *s.ActiveDeadlineSeconds > math.MaxInt32) {
		c.invalid(at.Child("activeDeadlineSeconds"), *s.ActiveDeadlineSeconds,
			validation.InclusiveRangeError(1, math.MaxInt32))
	}
	c.notNegative(at.Child("terminationGracePeriodSeconds"), *s.TerminationGracePeriodSeconds)
	oneOfSet(c, at.Child("preemptionPolicy"), s.PreemptionPolicy, v1.PreemptLowerPriority, v1.PreemptNever)
	c.errs = append(c.errs, metavalidation.ValidateLabels(s.NodeSelector, at.Child("nodeSelector"))...)
	if s.RuntimeClassName != nil {
		c.invalid(at.Child("runtimeClassName"), *s.RuntimeClassName,
			validation.IsDNS1123Subdomain(*s.RuntimeClassName)...)
	}
	if s.PriorityClassName != "" {
		c.invalid(at.Child("priorityClassName"), s.PriorityClassName,
			validation.IsDNS1123Subdomain(s.PriorityClassName)...)
	}
	if len(s.SchedulingGates) > 0 && !c.api {
		c.forbidden(at.Child("nodeName"),
			"cannot be set until all schedulingGates have been cleared: a static pod has its node, remove spec.schedulingGates")
	}
	if s.OS != nil {
		oneOf(c, at.Child("os"), s.OS.Name, v1.Linux, v1.Windows)
	}
	for i, gate := range s.ReadinessGates {
		c.invalid(at.Child("readinessGates").Index(i).Child("conditionType"), gate.ConditionType,
			validation.IsQualifiedName(string(gate.ConditionType))...)
	}
	c.quantities(at.Child("overhead"), &v1.ResourceRequirements{Limits: s.Overhead}, c.resourceName)
	c.affinity(at.Child("affinity"))
	c.tolerations(at.Child("tolerations"))
}

func (c *check) affinity(at *field.Path) {
	a := c.pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil {
		return
	}
	at = at.Child("nodeAffinity")
	if required := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		at := at.Child("requiredDuringSchedulingIgnoredDuringExecution")
		if len(required.NodeSelectorTerms) == 0 {
			c.required(at.Child("nodeSelectorTerms"), "give at least one term, or remove the affinity")
		}
		for i := range required.NodeSelectorTerms {
			c.nodeTerm(at.Child("nodeSelectorTerms").Index(i), &required.NodeSelectorTerms[i], true)
		}
	}
	for i := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		term := &a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i]
		at := at.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i)
		if term.Weight < 1 || term.Weight > 100 {
			c.invalid(at.Child("weight"), term.Weight, validation.InclusiveRangeError(1, 100))
		}
		c.nodeTerm(at.Child("preference"), &term.Preference, false)
	}
}

// nodeTerm checks a term of the node affinity. What is only preferred may have values that no label has.
func (c *check) nodeTerm(at *field.Path, t *v1.NodeSelectorTerm, labelValues bool) {
	for i := range t.MatchExpressions {
		e, at := &t.MatchExpressions[i], at.Child("matchExpressions").Index(i)
		count, values := len(e.Values), at.Child("values")
		switch e.Operator {
		case v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn:
			if count == 0 {
				c.required(values, "In and NotIn need values")
			}
		case v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist:
			if count > 0 {
				c.forbidden(values, "Exists and DoesNotExist have no values: remove them")
			}
		case v1.NodeSelectorOpGt, v1.NodeSelectorOpLt:
			if count != 1 {
				c.required(values, "Gt and Lt need one value")
			}
		default:
			c.invalid(at.Child("operator"), e.Operator, "must be In, NotIn, Exists, DoesNotExist, Gt or Lt")
		}
		c.errs = append(c.errs, metavalidation.ValidateLabelName(e.Key, at.Child("key"))...)
		for j := 0; labelValues && j < count; j++ {
			c.invalid(values.Index(j), e.Values[j], validation.IsValidLabelValue(e.Values[j])...)
		}
	}
	for i := range t.MatchFields {
		f, at := &t.MatchFields[i], at.Child("matchFields").Index(i)
		if f.Operator != v1.NodeSelectorOpIn && f.Operator != v1.NodeSelectorOpNotIn {
			c.invalid(at.Child("operator"), f.Operator, "must be In or NotIn")
		} else if len(f.Values) != 1 {
			c.required(at.Child("values"), "a field is compared with one value")
		}
		if f.Key != metav1.ObjectNameField {
			c.invalid(at.Child("key"), f.Key, "must be metadata.name")
			continue
		}
		for j, value := range f.Values {
			c.invalid(at.Child("values").Index(j), value, validation.IsDNS1123Subdomain(value)...)
		}
	}
}

func (c *check) tolerations(list *field.Path) {
	for i := range c.pod.Spec.Tolerations {
		t, at := &c.pod.Spec.Tolerations[i], list.Index(i)
		if t.Key != "" {
			c.errs = append(c.errs, metavalidation.ValidateLabelName(t.Key, at.Child("key"))...)
		} else if t.Operator != v1.TolerationOpExists {
			c.invalid(at.Child("operator"), t.Operator,
				"must be Exists when key is empty, which means to match all taints")
		}
		if t.TolerationSeconds != nil && t.Effect != v1.TaintEffectNoExecute {
			c.invalid(at.Child("effect"), t.Effect, "must be NoExecute when tolerationSeconds is set")
		}
		switch t.Operator {
		case v1.TolerationOpEqual, "":
			c.invalid(at.Child("operator"), t.Value, validation.IsValidLabelValue(t.Value)...)
		case v1.TolerationOpExists:
			if t.Value != "" {
				c.invalid(at.Child("operator"), t.Value, "value must be empty when operator is Exists")
			}
		default:
			c.add(field.NotSupported(at.Child("operator"), t.Operator,
				[]v1.TolerationOperator{v1.TolerationOpEqual, v1.TolerationOpExists}))
		}
		if t.Effect != "" {
			oneOf(c, at.Child("effect"), t.Effect, v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule,
				v1.TaintEffectNoExecute)
		}
	}
}

// network is the pod's names and how it resolves others.
func (c *check) network(at *field.Path) {
	s := &c.pod.Spec
	for name, value := range map[string]string{"hostname": s.Hostname, "subdomain": s.Subdomain} {
		if value != "" {
			c.invalid(at.Child(name), value, validation.IsDNS1123Label(value)...)
		}
	}
	if s.HostnameOverride != nil {
		switch at := at.Child("hostnameOverride"); {
		case s.SetHostnameAsFQDN != nil && *s.SetHostnameAsFQDN:
			c.forbidden(at, "may not be set with setHostnameAsFQDN: remove one of them")
		case s.HostNetwork:
			c.forbidden(at, "may not be set with hostNetwork: remove one of them")
		case len(*s.HostnameOverride) > maxHostname:
			c.invalid(at, *s.HostnameOverride, "must not have more than 64 characters")
		}
		c.invalid(at.Child("hostnameOverride"), *s.HostnameOverride,
			validation.IsDNS1123Subdomain(*s.HostnameOverride)...)
	}
	for i, alias := range s.HostAliases {
		at := at.Child("hostAliases").Index(i)
		c.errs = append(c.errs, validation.IsValidIPForLegacyField(at.Child("ip"), alias.IP, true, nil)...)
		for j, name := range alias.Hostnames {
			c.invalid(at.Child("hostnames").Index(j), name, validation.IsDNS1123Subdomain(name)...)
		}
	}
	oneOf(c, at.Child("dnsPolicy"), s.DNSPolicy, v1.DNSClusterFirstWithHostNet, v1.DNSClusterFirst, v1.DNSDefault,
		v1.DNSNone)
	c.resolver(at.Child("dnsConfig"))
}

// resolver is the configuration of the pod's resolver.
func (c *check) resolver(config *field.Path) {
	dns := c.pod.Spec.DNSConfig
	if c.pod.Spec.DNSPolicy == v1.DNSNone {
		if dns == nil {
			c.required(config, "dnsPolicy is None: give the resolver's configuration")
		} else if len(dns.Nameservers) == 0 {
			c.required(config.Child("nameservers"), "dnsPolicy is None: give at least one name server")
		}
	}
	if dns == nil {
		return
	}
	if len(dns.Nameservers) > maxNameservers {
		c.invalid(config.Child("nameservers"), dns.Nameservers, "must not have more than 3 name servers")
	}
	for i, server := range dns.Nameservers {
		c.errs = append(c.errs,
			validation.IsValidIPForLegacyField(config.Child("nameservers").Index(i), server, true, nil)...)
	}
	if len(dns.Searches) > maxSearches || len(strings.Join(dns.Searches, " ")) > maxSearchChars {
		c.invalid(config.Child("searches"), dns.Searches,
			"must not have more than 32 search paths, nor more than 2048 characters together")
	}
	for i, search := range dns.Searches {
		if search == "." {
			continue
		}
		c.invalid(config.Child("searches").Index(i), search,
			validation.IsDNS1123SubdomainWithUnderscore(strings.TrimSuffix(search, "."))...)
	}
	for i, option := range dns.Options {
		if option.Name == "" {
			c.required(config.Child("options").Index(i), "an option needs a name")
		}
	}
}

// uniqueNames refuses names that are no DNS labels or come twice.
type uniqueNames sets.Set[string]

func (u uniqueNames) take(c *check, at *field.Path, name string) {
	switch {
	case name == "":
		c.required(at, "give it a name")
	case sets.Set[string](u).Has(name):
		c.duplicate(at, name)
	default:
		c.invalid(at, name, validation.IsDNS1123Label(name)...)
	}
	sets.Set[string](u).Insert(name)
}
