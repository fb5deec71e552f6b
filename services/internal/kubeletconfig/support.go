package kubeletconfig

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	kjson "sigs.k8s.io/json"
)

// support says what this version does with a setting of the kubelet.
type support int

const (
	// supported: it works as in the kubelet.
	supported support = iota
	// idle: it has no effect here, and nothing is missing without it.
	idle
	// warned: it is accepted and named in a warning.
	warned
	// refused: it enforces or protects something, so a value that asks for that refuses the start.
	refused
)

// supportRow is one setting, or a group of them.
type supportRow struct {
	// name is a field's path, which covers all that is under it and has no row of its own, or a flag with its dashes.
	name  string
	state support
	note  string
}

const (
	msgWarned = "these settings are accepted and have no effect in this version of microlet"
	msgWeaker = "these settings open the HTTPS API further than its default"
	msgGates  = "these feature gates are known, and nothing in this version of microlet reads them"

	notBuiltGate   = "this version of microlet does not have what the gate turns on"
	notBuilt       = "it enforces or protects something, and this version of microlet does not do so yet"
	notBuiltRemedy = "remove it, or keep the kubelet on this node"
)

// checkSupport refuses and warns of what is set explicitly, to another value than the default, and not built.
func checkSupport(p *problems, c *Config) []Warning {
	given, defaults := asObject(c.Kubelet), asObject(Default())
	fields := map[support][]string{}
	var opened []string
	for _, path := range slices.Sorted(maps.Keys(c.Provenance)) {
		if value := at(given, path); value != nil && weaker(path, value) {
			opened = append(opened, describe(path, value, p.from))
		}
	}
	for _, row := range supportTable {
		if strings.HasPrefix(row.name, "--") {
			if value, set := row.flagSet(c); set {
				row.apply(p, fields, row.name, value)
			}
			continue
		}
		for _, path := range slices.Sorted(maps.Keys(c.Provenance)) {
			if rowOf(path).name != row.name {
				continue
			}
			value, standard := at(given, path), at(defaults, path)
			if row.state == supported || row.state == idle || reflect.DeepEqual(value, standard) {
				continue
			}
			row.apply(p, fields, path, value)
		}
	}
	return warnings(fields, opened, idleGates(c))
}

// apply refuses the setting, or notes it for a warning.
func (r supportRow) apply(p *problems, fields map[support][]string, path string, value any) {
	switch r.state {
	case refused:
		if p.has(path) {
			return // it would be refused by the kubelet too, and that is the thing to correct
		}
		p.add(path, value, notBuilt, notBuiltRemedy)
	case warned:
		fields[r.state] = append(fields[r.state], describe(path, value, p.from))
	}
}

// weaker says that a setting would open the HTTPS API further than its default.
func weaker(path string, value any) bool {
	switch path {
	case "authorization.mode":
		return value == "AlwaysAllow"
	case "authentication.anonymous.enabled":
		return value == true
	case "authentication.webhook.enabled":
		return value == false
	case "readOnlyPort":
		return value != int64(0)
	}
	return false
}

func warnings(fields map[support][]string, opened, gates []string) []Warning {
	var all []Warning
	for _, w := range []Warning{
		{msgWarned, fields[warned]},
		{msgWeaker, opened},
		{msgGates, gates},
	} {
		if len(w.Fields) > 0 {
			all = append(all, w)
		}
	}
	return all
}

// readGates are the gates that change what this version does or refuses. FeatureEnabled answers for no other.
var readGates = map[string]bool{
	gateCustomCPUCFSQuotaPeriod:      true,
	gateCrashLoopBackOffMax:          true,
	gateDefaultPodSysctls:            true,
	gateEnsureSecretPulledImages:     true,
	gateGracefulNodeShutdown:         true,
	gateGracefulNodeShutdownPriority: true,
	gateImageMaximumGCAge:            true,
	gateLoggingAlpha:                 true, // of the split streams
	gateLoggingBeta:                  true, // of the format json
	gateMemoryQoS:                    true,
	gateNodeLogQuery:                 true,
	gateNodeSwap:                     true,
	gateQOSReserved:                  true,
	gateRotateServerCertificate:      true,
	gateTopologyManagerOptions:       true,

	"AllowDNSOnlyNodeCSR":    true,
	"ComponentFlagz":         true,
	"ComponentStatusz":       true,
	"KubeletInUserNamespace": true,
	"PodLevelResources":      true,

	"KubeletAllocatedPodsEndpoint": true,

	gateWebSockets:             true,
	gateRestartAllContainers:   true,
	gateResizeOfInitContainers: true,
	gateResizeOfPodLevel:       true,
	"PodLogsQuerySplitStreams": true,
	"ContainerCheckpoint":      true,
	"ContainerStopSignals":     true,
	"H2CContainerProbe":        true,
	"GRPCContainerProbeTLS":    true,
	"EmptyDirVolumeMode":       true,
	"PodCertificateRequest":    true,
	"ResourceHealthStatus":     true,
	"PodsAPI":                  true,
	"SELinuxMount":             true,

	"KubeletServiceAccountTokenForCredentialProviders": true,

	"AtomicWriteVolumeUserFields":  true,
	"HugepageAwareEviction":        true,
	"ClusterTrustBundleProjection": true,
	"PodAndContainerStatsFromCRI":  true,
	"AllAlpha":                     true,
	"AllBeta":                      true,
}

// refusedGates are the gates that refuse the start when they are set to true: what they turn on would change pods that
// run, and is not built. AllAlpha leaves them off.
var refusedGates = map[string]bool{
	"InPlacePodVerticalScalingExclusiveCPUs":       true,
	"InPlacePodVerticalScalingExclusiveMemory":     true,
	"InPlacePodVerticalScalingMemoryBackedVolumes": true,
	"InPlacePodVerticalScalingSchedulerPreemption": true,
}

// idleGates are the gates that are set to another value than their default and that nothing reads.
func idleGates(c *Config) []string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(c.Kubelet.FeatureGates)) {
		on := c.Kubelet.FeatureGates[name]
		if g, known := knownGates()[name]; known && !readGates[name] && !refusedGates[name] && g.Default != on {
			list = append(list, fmt.Sprintf("%s=%t", name, on))
		}
	}
	return list
}

// flagSet reports whether a flag that mirrors no field was set to another value than its default, and to which.
func (r supportRow) flagSet(c *Config) (any, bool) {
	name := strings.TrimPrefix(r.name, "--")
	if c.Provenance[r.name] == "" || r.state == supported || r.state == idle {
		return nil, false
	}
	if name == podInfraFlag { // it leaves no trace in NodeFlags
		return nil, true
	}
	value := c.Node.flagValue(name)
	return value, value != defaultFlagValues()[name]
}

// flagValue is the value that a flag has, as text.
func (n NodeFlags) flagValue(name string) string {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	(&Flags{NodeFlags: n}).bindNodeFlags(fs)
	return fs.Lookup(name).Value.String()
}

var defaultFlagValues = sync.OnceValue(func() map[string]string {
	values := map[string]string{}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	(&Flags{NodeFlags: defaultNodeFlags()}).bindNodeFlags(fs)
	fs.VisitAll(func(fl *pflag.Flag) { values[fl.Name] = fl.Value.String() })
	return values
})

// rowOf returns the row of the longest name that covers path. Every field and flag has one; a test sees to it.
func rowOf(path string) supportRow {
	rows := supportRows()
	for name := path; name != ""; name = parentPath(name) {
		if row, ok := rows[name]; ok {
			return row
		}
	}
	return supportRow{}
}

var supportRows = sync.OnceValue(func() map[string]supportRow {
	rows := map[string]supportRow{}
	for _, row := range supportTable {
		rows[row.name] = row
	}
	return rows
})

// fieldOfFlag maps the flags that mirror a field to that field.
var fieldOfFlag = sync.OnceValue(func() map[string]string {
	fields := map[string]string{}
	for _, f := range configFlags {
		fields[f.name] = f.field
	}
	return fields
})

// asObject is the configuration as its JSON, in which fields are found by their paths.
func asObject(c kc) map[string]any {
	data, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("kubeletconfig: a configuration that was decoded does not encode: %v", err))
	}
	var object map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &object); err != nil {
		panic(fmt.Sprintf("kubeletconfig: a configuration that was encoded does not decode: %v", err))
	}
	return object
}

func at(object map[string]any, path string) any {
	key, rest, nested := strings.Cut(path, ".")
	if !nested {
		return object[key]
	}
	inner, _ := object[key].(map[string]any)
	return at(inner, rest)
}

// describe is a setting as warnings show it.
func describe(field string, value any, from provenance) string {
	text := field
	if value != nil {
		text += "=" + show(field, value)
	}
	if source := from.of(field); source != "" {
		text += " (" + source + ")"
	}
	return text
}

var plain = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[\w./:%+@,=-]+$`) })

// show writes the value of a field on one line, unless it may be a secret.
func show(field string, value any) string {
	if strings.HasPrefix(field, "staticPodURLHeader") || field == "--manifest-url-header" {
		return masked
	}
	if s, ok := value.(fmt.Stringer); ok {
		return s.String()
	}
	v := reflect.ValueOf(value)
	if v.IsValid() && v.Kind() == reflect.String {
		if plain().MatchString(v.String()) {
			return v.String()
		}
		return fmt.Sprintf("%q", v.String())
	}
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(data)
}
