package subject

import (
	"slices"
	"strings"
	"testing"

	"github.com/microlet/microlet/proto/role"
)

func TestMatches(t *testing.T) {
	tests := []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"*", "a", true}, {"*", "a.b", false},
		{"a.*", "a.b", true}, {"a.*", "a", false}, {"a.*.c", "a.b.c", true}, {"a.*.c", "a.b.d", false},
		{">", "a.b", true}, {"a.>", "a.b.c", true}, {"a.>", "a", false}, {"a.b", "a", false},
	}
	for _, tt := range tests {
		if got := Matches(tt.pattern, tt.name); got != tt.want {
			t.Errorf("Matches(%q, %q) = %v", tt.pattern, tt.name, got)
		}
	}
}

func TestOverlap(t *testing.T) {
	tests := []struct {
		a, b string
		want bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"*", "a", true}, {"a.*", "*.b", true}, {"a.*", "b.*", false},
		{"a.*", "a", false}, {"a.>", "a.b.c", true}, {"a.>", "a", false}, {"a.b.>", "a.*", false}, {">", "x.y", true},
	}
	for _, tt := range tests {
		if got := Overlap(tt.a, tt.b); got != tt.want {
			t.Errorf("Overlap(%q, %q) = %v", tt.a, tt.b, got)
		}
		if got := Overlap(tt.b, tt.a); got != tt.want {
			t.Errorf("Overlap(%q, %q) = %v", tt.b, tt.a, got)
		}
	}
}

// No key that is built here can be taken for an epoch mark, and each belongs to the owner of its pattern.
func TestOwnersOfKeys(t *testing.T) {
	tests := []struct {
		bucket, key string
		want        role.Role
	}{
		{Pods, PodKey("3f2c"), role.Podsync}, {PodStatus, PodKey("3f2c"), role.Podsync},
		{Assignment, PodKey("3f2c"), role.Podsync},
		{Runtime, RuntimeRelist, role.PLEG}, {ProbeResults, ProbeResultKey("3f2c", "c", ProbeLiveness), role.Prober},
		{Node, NodeRuntime, role.Podsync}, {Node, NodeCapacity, role.Podsync}, {Node, NodeVolumes, role.Podsync},
		{Node, NodeCSI, role.Podsync},
		{Node, NodeAddresses, role.NodeStatus}, {Node, NodeReported, role.NodeStatus}, {Node, NodeImages, role.ImageGC},
		{Node, NodePressure, role.Evictor},
		{Stats, StatsSummary, role.Stats}, {Heartbeats, HeartbeatKey(role.PLEG, "0"), role.PLEG},
	}
	for _, tt := range tests {
		b, ok := BucketNamed(tt.bucket)
		if !ok {
			t.Fatalf("no bucket %s", tt.bucket)
		}
		if got, ok := b.Owner(tt.key); !ok || got != tt.want {
			t.Errorf("owner of %s/%s is %q, want %q", tt.bucket, tt.key, got, tt.want)
		}
		if IsEpochKey(tt.key) {
			t.Errorf("%s is an epoch mark", tt.key)
		}
		if got, _ := b.Owner(EpochKey(tt.want, "0")); got != tt.want && tt.bucket != ProbeResults {
			t.Errorf("owner of %s's mark in %s is %q", tt.want, tt.bucket, got)
		}
		bucket, key, ok := ParseEntry(Entry(tt.bucket, tt.key))
		if !ok || bucket != tt.bucket || key != tt.key {
			t.Errorf("ParseEntry gives %q %q %v", bucket, key, ok)
		}
	}
	if _, ok := (Bucket{Name: Node, Grants: []Grant{{"runtime", role.Podsync, nil}}}).Owner("nothing"); ok {
		t.Error("a key that is granted to no role has an owner")
	}
	results, _ := BucketNamed(ProbeResults)
	for _, key := range []string{
		"", "p", "..", "p..liveness", "p.c/d.liveness", strings.Repeat("x", 254) + ".c.liveness", "p._epoch.liveness",
		"_epoch.prober.", "_epoch.prober." + strings.Repeat("x", 254), "_epoch._epoch.prober.0",
	} {
		if owner, ok := results.Owner(key); ok {
			t.Errorf("%q, which nothing here builds, is %s's", key, owner)
		}
	}
	if b, _ := BucketNamed(Node); b.ReadableBy(role.Stats) || !b.ReadableBy(role.NodeAPI) {
		t.Error("NODE is readable by stats, or not by nodeapi")
	}
}

func TestValidToken(t *testing.T) {
	for s, valid := range map[string]bool{
		"": false, "_epoch": false, "-a": false, "a.b": false, "*": false, ">": false, "a b": false, "é": false,
		"a/b": false, "a": true, "Z": true, "0": true, "3f2c-11": true, "a_b": true, "a\n": false, "a\x00": false,
		"a`": false, "a@": false, "a[": false, "a{": false, "a:": false,
		strings.Repeat("x", 253): true, strings.Repeat("x", 254): false,
	} {
		if err := ValidToken(s); (err == nil) != valid {
			t.Errorf("ValidToken(%q) = %v, want valid %t", s, err, valid)
		}
	}
}

func FuzzTokensStayTokens(f *testing.F) {
	for _, s := range []string{"", "a", "_epoch", "a.b", "*", ">", "a b", "3f2c-11", "é", strings.Repeat("x", 254)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if ValidToken(s) != nil {
			defer func() {
				if recover() == nil {
					t.Errorf("a key was built of %q", s)
				}
			}()
			_ = ProbeResultKey(s, "c", ProbeLiveness)
			return
		}
		key := ProbeResultKey(s, s, s)
		if !Matches("*.*.*", key) || IsEpochKey(key) ||
			!strings.HasPrefix(Entry(ProbeResults, key), "$KV.PROBE_RESULTS.") {
			t.Errorf("%q becomes the key %q", s, key)
		}
	})
}

// What is parsed is what was built, and nothing else is parsed.
func FuzzParsedKeys(f *testing.F) {
	for _, key := range []string{
		"", ".", "..", "a", "a.b", "a.b.c", "a.b.c.d", ".b.c", "a..c", "a.b.", "_epoch.prober.0", "*.b.c", "a.>",
		"a. .c", "prober.0",
		ProbeResultKey("3f2c-11", "web", ProbeReadiness), HeartbeatKey(role.Prober, "0"), EpochKey(role.Prober, "0"),
	} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if uid, container, probe, ok := ParseProbeResultKey(key); ok && ProbeResultKey(uid, container, probe) != key {
			t.Errorf("%q was read as %q, %q, %q", key, uid, container, probe)
		} else if ok == (IsEpochKey(key) || !Matches("*.*.*", key)) && !hasInvalidPart(key) {
			t.Errorf("%q is a probe result's key: %t", key, ok)
		}
		r, replica, ok := ParseHeartbeatKey(key)
		if ok && (HeartbeatKey(r, replica) != key || !Matches(HeartbeatKeys(r), key)) {
			t.Errorf("%q was read as %q, %q", key, r, replica)
		} else if ok == !Matches("*.*", key) && !hasInvalidPart(key) {
			t.Errorf("%q is a heartbeat's key: %t", key, ok)
		}
	})
}

func hasInvalidPart(key string) bool {
	return slices.ContainsFunc(strings.Split(key, "."), func(part string) bool { return ValidToken(part) != nil })
}
