package twins

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/kubernetes/pkg/kubelet/allocation/state"
	"k8s.io/kubernetes/pkg/kubelet/checkpointmanager/checksum"

	allocationtwin "github.com/microlet/microlet/services/podsync/internal/allocation/twin"
)

// kubeletStarts is what the kubelet has after a start with this file.
func kubeletStarts(file []byte) (granted, error) {
	var c state.Checkpoint
	if err := c.UnmarshalCheckpoint(file); err != nil {
		return nil, err
	}
	if err := c.VerifyChecksum(); err != nil {
		return nil, err
	}
	info, err := c.GetPodResourceCheckpointInfo()
	if err != nil {
		return nil, err
	}
	return granted(info.Entries), nil
}

// TestTheKubeletReadsWhatOursWrites: ours reads all that the kubelet reads, and more. Whatever it has read, the kubelet
// starts with what it then writes, and has the same.
func TestTheKubeletReadsWhatOursWrites(t *testing.T) {
	seen := map[string]int{}
	for input := range uint64(20_000) {
		data := drawData(newSource(7, input))
		c := state.Checkpoint{Data: data}
		c.Checksum = checksum.New(data)
		file, err := c.MarshalCheckpoint()
		if err != nil {
			t.Fatal(err)
		}
		want, refused := kubeletStarts(file)
		ours, same, changed, err := allocationtwin.Read(data)
		switch {
		case refused == nil && err != nil:
			t.Fatalf("input %d: %s\nthe kubelet reads it, ours does not: %v", input, data, err)
		case refused == nil && !equality.Semantic.DeepEqual(ours, want.ours()):
			t.Fatalf("input %d: %s\nthe kubelet has %+v, ours %+v", input, data, want, ours)
		case refused == nil && len(want) > 0:
			seen["both read it"]++
		case refused != nil && len(ours) > 0:
			seen["ours alone reads a part"]++
		}
		if same == "" {
			seen["neither reads it"]++
			continue
		}
		for _, written := range []string{same, changed} {
			got, err := kubeletStarts([]byte(written))
			if err != nil {
				t.Fatalf("input %d: %s\nthe kubelet does not start with %s: %v", input, data, written, err)
			}
			if !equality.Semantic.DeepEqual(got.ours(), ours) {
				t.Fatalf("input %d: %s\nours has %+v, the kubelet then %+v", input, data, ours, got)
			}
			if refused == nil && !equality.Semantic.DeepEqual(got, want) {
				t.Fatalf("input %d: %s\nthe kubelet had %+v, and has %+v", input, data, want, got)
			}
		}
	}
	t.Logf("%v", seen)
	for _, what := range []string{"both read it", "ours alone reads a part", "neither reads it"} {
		if seen[what] < 100 {
			t.Errorf("%s: %d times", what, seen[what])
		}
	}
}

// drawFields is a JSON object of up to some fields, which may stand twice.
func drawFields(s *Source, fields int, field func() string) string {
	var all []string
	for range s.Intn(fields + 1) {
		all = append(all, field())
	}
	return "{" + strings.Join(all, ",") + "}"
}

// odd is now and then a value of another type.
func odd(s *Source, value string) string {
	if s.Percent(2) {
		return OneOf(s, "null", "[]", "7", `"x"`, "{}", `{"x":{}}`)
	}
	return value
}

func drawData(s *Source) string {
	return odd(s, drawFields(s, 3, func() string {
		name := OneOf(s, "entries", "entries", "Entries", "eNtries", "entrie\u017f", "x")
		return `"` + name + `":` + odd(s, drawFields(s, 3, func() string {
			return OneOf(s, `"a"`, `"b"`, `"a\u003cb"`, `"\u2028"`, `"entries"`) + `:` + drawEntry(s)
		}))
	}))
}

func drawEntry(s *Source) string {
	return odd(s, drawFields(s, 4, func() string {
		switch s.Intn(5) {
		case 0, 1:
			return OneOf(s, `"ContainerResources"`, `"containerResources"`, `"CONTAINERRESOURCES"`) + `:` +
				odd(s, drawFields(s, 2, func() string { return OneOf(s, `"c":`, `"d":`, `"e12":`) + drawLimits(s) }))
		case 2:
			return OneOf(s, `"PodLevelResources":`, `"podLevelResources":`) + drawLimits(s)
		case 3:
			return OneOf(s, `"EmptyDirVolumeLimits":`, `"emptydirvolumelimits":`) +
				odd(s, drawFields(s, 2, func() string { return `"v":` + drawQuantity(s) }))
		}
		return OneOf(s, `"x": [ 1 ]`, `"Pod":{"spec":{}}`, `"<>":"\u2028"`)
	}))
}

func drawLimits(s *Source) string {
	return odd(s, drawFields(s, 3, func() string {
		if s.Percent(10) {
			return OneOf(s, `"claims":[{"name":"a"}]`, `"claims":[{"name":"a","request":"b","x":1}]`, `"claims":null`)
		}
		return OneOf(s, `"limits":`, `"requests":`, `"Limits":`, `"x":`) + odd(s, drawFields(s, 2, func() string {
			return OneOf(s, `"cpu":`, `"memory":`, `"a.b/c":`) + drawQuantity(s)
		}))
	}))
}

func drawQuantity(s *Source) string {
	if s.Percent(1) {
		return OneOf(s, `"one"`, `""`, `"1e"`, `true`, `"1\u0065-2147483647"`, `{}`, `"1.1.1"`, `" 1"`)
	}
	return OneOf(s, `"1"`, `"0.1"`, `"1e3"`, `2`, `1e3`, `"1E"`, `"1500m"`, `"-3"`, `"1.5Gi"`, `null`, `"1E-3"`, `"+2"`,
		`"99999999999999999999"`)
}
