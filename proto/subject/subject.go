// Package subject contains every subject, stream, bucket and key of the bus, and its owner.
//
// No other code builds such a name. The bus derives its buckets and its permissions from this package. So a service
// can neither publish nor put a name that is not here, and each name here has exactly one owner.
package subject

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/microlet/microlet/proto/role"
)

// Bucket is a JetStream key-value bucket: state, each key with exactly one owner.
type Bucket struct {
	// Name of the bucket; its stream is "KV_<Name>".
	Name string
	// TTL after which an entry that was not put again is gone; 0 keeps it. It is the
	// bucket's, since a key's own TTL applies on create only.
	TTL time.Duration
	// MaxBytes bounds what each owner may hold of the bucket. An owner that fills its part takes nothing from
	// the others'.
	MaxBytes int64
	// MaxEntry bounds one entry, in bytes.
	MaxEntry int32
	// Grants say which keys there are. Patterns of different owners never overlap.
	Grants []Grant
}

// Grant gives the keys that match Pattern to one owner.
type Grant struct {
	// Pattern in NATS terms: tokens separated by dots, "*" for any one token.
	Pattern string
	Owner   role.Role
	// Readers may watch and get what matches. Owners always may.
	Readers []role.Role
}

// The buckets of a node.
const (
	Pods         = "PODS"
	PodStatus    = "POD_STATUS"
	Runtime      = "RUNTIME"
	Assignment   = "ASSIGNMENT"
	ProbeResults = "PROBE_RESULTS"
	Node         = "NODE"
	Stats        = "STATS"
	Resources    = "RESOURCES"
	Heartbeats   = "HEARTBEATS"
)

// Sizes of the buckets' streams. A pod may be as large as the largest manifest, so PODS is the big one.
const (
	mebibyte = 1 << 20

	// MaxPayload is the largest message that the bus takes: a manifest may be 10 MB, and its
	// pod travels whole.
	MaxPayload = 16 * mebibyte

	// smallEntry holds what is bounded by its kind: a heartbeat, a result, an account of a relist. A probe's output is
	// cut long before.
	smallEntry = 16 << 10

	// MaxNodeEntry holds the node's image list, the largest of NODE's values.
	MaxNodeEntry = 2 * mebibyte

	// MaxResourcesEntry bounds what a pod may be granted, with all that plugins add to its containers.
	MaxResourcesEntry = mebibyte

	// HeartbeatPeriod is how often a service puts its heartbeat.
	HeartbeatPeriod = 5 * time.Second
)

// Buckets returns the contract's buckets.
func Buckets() []Bucket {
	heartbeats := Bucket{Name: Heartbeats, TTL: 10 * time.Minute, MaxBytes: mebibyte, MaxEntry: smallEntry}
	for _, r := range services() {
		heartbeats.Grants = append(heartbeats.Grants, Grant{Pattern: HeartbeatKeys(r), Owner: r, Readers: everyone()})
	}
	return []Bucket{
		{Name: Pods, MaxBytes: 256 * mebibyte, MaxEntry: MaxPayload, Grants: []Grant{
			{"*", role.Podsync, []role.Role{
				role.Prober, role.ImageGC, role.Stats, role.Evictor, role.NodeAPI, role.NodeStatus, role.Resources,
			}},
		}},
		{Name: PodStatus, MaxBytes: 256 * mebibyte, MaxEntry: MaxPayload, Grants: []Grant{
			{"*", role.Podsync, []role.Role{role.Prober, role.Stats, role.Evictor, role.NodeAPI, role.Resources}},
		}},
		{Name: Runtime, MaxBytes: 4 * mebibyte, MaxEntry: smallEntry, Grants: []Grant{
			// A podsync that does not read pleg's stream of hints reads this.
			{RuntimeRelist, role.PLEG, []role.Role{role.Podsync, role.NodeStatus}},
		}},
		{Name: Assignment, MaxBytes: 16 * mebibyte, MaxEntry: smallEntry, Grants: []Grant{
			{"*", role.Podsync, []role.Role{role.Prober}},
		}},
		{Name: ProbeResults, MaxBytes: 16 * mebibyte, MaxEntry: smallEntry, Grants: []Grant{
			{"*.*.*", role.Prober, []role.Role{role.Podsync}},
		}},
		{Name: Node, MaxBytes: 8 * mebibyte, MaxEntry: MaxNodeEntry, Grants: []Grant{
			{NodeRuntime, role.Podsync, nodeReaders()},
			{NodeCapacity, role.Podsync, nodeReaders()},
			{NodeVolumes, role.Podsync, nodeReaders()},
			{NodeCSI, role.Podsync, nodeReaders()},
			{NodeAddresses, role.NodeStatus, nodeReaders()},
			{NodeReported, role.NodeStatus, nodeReaders()},
			{NodeImages, role.ImageGC, nodeReaders()},
			{NodePressure, role.Evictor, nodeReaders()},
			{NodeResources, role.Resources, nodeReaders()},
		}},
		{Name: Stats, MaxBytes: 4 * mebibyte, MaxEntry: smallEntry, Grants: []Grant{
			{StatsSummary, role.Stats, []role.Role{role.Evictor, role.NodeAPI}},
		}},
		{Name: Resources, MaxBytes: 32 * mebibyte, MaxEntry: MaxResourcesEntry, Grants: []Grant{
			{"*", role.Resources, []role.Role{role.Podsync, role.NodeAPI, role.Stats}},
		}},
		heartbeats,
	}
}

func nodeReaders() []role.Role {
	return []role.Role{role.NodeStatus, role.Podsync, role.NodeAPI}
}

// services are the roles with a connection to the bus and a life that others watch.
func services() []role.Role {
	return []role.Role{
		role.Bus, role.Podsync, role.PLEG, role.Prober, role.NodeStatus,
		role.ImageGC, role.Stats, role.Evictor, role.NodeAPI, role.Resources,
	}
}

func everyone() []role.Role { return append(services(), role.Up) }

// maxToken is the length of the longest token in bytes: that of a Kubernetes name.
const maxToken = 253

// isToken reports whether s may stand between two dots of a subject or key: it has no dot, wildcard, space or control
// character. It begins with a letter or digit, so that no name can pose as an epoch mark.
//
// It is no regular expression, since every process would hold the 200 KiB that one with this bound takes.
func isToken(s string) bool {
	if s == "" || len(s) > maxToken || s[0] == '-' || s[0] == '_' {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

// ValidToken reports whether s is safe as one token of a subject or key. Pod UIDs are checked
// with it at their source, since a static manifest may bring its own.
func ValidToken(s string) error {
	if !isToken(s) {
		return fmt.Errorf(
			"%q cannot be part of a subject: use 1 to %d letters, digits, - or _, the first a letter or digit", s, maxToken,
		)
	}
	return nil
}

// mustToken panics where a name was not validated at its source: a bug that must not
// turn into a wildcard.
func mustToken(s string) string {
	if err := ValidToken(s); err != nil {
		panic(err)
	}
	return s
}

// PodKey is the key of a pod in PODS, POD_STATUS, ASSIGNMENT and RESOURCES.
//
//	<podUID>
func PodKey(podUID string) string { return mustToken(podUID) }

// The kinds of probes, as they are named in keys.
const (
	ProbeReadiness = "readiness"
	ProbeLiveness  = "liveness"
	ProbeStartup   = "startup"
)

// ProbeResultKey is a key of PROBE_RESULTS.
//
//	<podUID>.<container>.<probe>
func ProbeResultKey(podUID, container, probe string) string {
	return mustToken(podUID) + "." + mustToken(container) + "." + mustToken(probe)
}

// ParseProbeResultKey takes a ProbeResultKey apart; ok is false for any other key.
func ParseProbeResultKey(key string) (podUID, container, probe string, ok bool) {
	parts := strings.Split(key, ".")
	if len(parts) != 3 || slices.ContainsFunc(parts, func(part string) bool { return ValidToken(part) != nil }) {
		return "", "", "", false
	}
	return parts[0], parts[1], parts[2], true
}

// Keys of RUNTIME, NODE and STATS.
const (
	// RuntimeRelist is RUNTIME's one key: pleg's account of itself.
	//
	//	relist
	RuntimeRelist = "relist"

	// NodeRuntime is podsync's account of the container runtime.
	//
	//	runtime
	NodeRuntime = "runtime"

	// NodeCapacity is what the node has and what pods may use of it.
	//
	//	capacity
	NodeCapacity = "capacity"

	// NodeVolumes are the volumes that must not be detached from the node.
	//
	//	volumes
	NodeVolumes = "volumes"

	// NodeCSI is what CSI drivers registered.
	//
	//	csi
	NodeCSI = "csi"

	// NodeAddresses are the node's addresses.
	//
	//	addresses
	NodeAddresses = "addresses"

	// NodeReported is what of the node's status the apiserver has accepted.
	//
	//	reported
	NodeReported = "reported"

	// NodeImages is the node's image list and the state of its garbage collection.
	//
	//	images
	NodeImages = "images"

	// NodePressure is the node's pressure conditions.
	//
	//	pressure
	NodePressure = "pressure"

	// NodeResources is the node's extended resources.
	//
	//	resources
	NodeResources = "resources"

	// StatsSummary reports when the last summary was taken.
	//
	//	summary
	StatsSummary = "summary"
)

// HeartbeatKey is a key of HEARTBEATS.
//
//	<service>.<replica>
func HeartbeatKey(r role.Role, replica string) string {
	return mustToken(string(r)) + "." + mustToken(replica)
}

// ParseHeartbeatKey takes a HeartbeatKey apart; ok is false for any other key.
func ParseHeartbeatKey(key string) (r role.Role, replica string, ok bool) {
	service, replica, ok := strings.Cut(key, ".")
	if !ok || ValidToken(service) != nil || ValidToken(replica) != nil {
		return "", "", false
	}
	return role.Role(service), replica, true
}

// HeartbeatKeys matches the heartbeats of every replica of r.
//
//	<service>.*
func HeartbeatKeys(r role.Role) string { return mustToken(string(r)) + ".*" }

// epochPrefix begins the keys of epoch marks, which no other key's first token may be.
const epochPrefix = "_epoch"

// EpochKey is the key of a writer's epoch mark, in every bucket that it writes.
//
//	_epoch.<service>.<replica>
func EpochKey(r role.Role, replica string) string {
	return epochPrefix + "." + mustToken(string(r)) + "." + mustToken(replica)
}

// IsEpochKey reports whether key is an epoch mark.
func IsEpochKey(key string) bool { return strings.HasPrefix(key, epochPrefix+".") }

// EpochKeyOf is the EpochKey of a writer that signs as "<service>.<replica>".
//
//	_epoch.<service>.<replica>
func EpochKeyOf(writer string) string { return epochPrefix + "." + writer }
