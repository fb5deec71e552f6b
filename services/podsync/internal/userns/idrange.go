package userns

import (
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// Unit is what the length of a range is a multiple of.
	Unit = 65536
	// noID is the ID that stands for none, and that no range may have.
	noID = 1<<32 - 1
)

// Range is a range of IDs of the host, of users and of groups alike. The pod's own begin at 0.
type Range struct{ First, Length uint32 }

func (r Range) String() string { return fmt.Sprintf("%d-%d", r.First, r.end()-1) }

// end is the first ID after the range.
func (r Range) end() uint64 { return uint64(r.First) + uint64(r.Length) }

func (r Range) overlaps(other Range) bool {
	return uint64(r.First) < other.end() && uint64(other.First) < r.end()
}

func (r Range) contains(other Range) bool { return r.First <= other.First && other.end() <= r.end() }

// check reports whether the range can be that of a pod at all, whatever the node's settings are.
func (r Range) check() error {
	switch {
	case r.Length == 0:
		return fmt.Errorf("the range has no IDs")
	case r.First < Unit:
		return fmt.Errorf("the range begins with ID %d: those below %d are the host's own", r.First, Unit)
	case r.end() > noID:
		return fmt.Errorf("the range %d+%d goes beyond the last ID", r.First, r.Length)
	}
	return nil
}

// namespace is what CRI takes.
func (r Range) namespace() *runtimeapi.UserNamespace {
	mapping := func() []*runtimeapi.IDMapping {
		return []*runtimeapi.IDMapping{{HostId: r.First, Length: r.Length}}
	}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: mapping(), Gids: mapping()}
}

// rangesOf are the host's IDs that a sandbox has; none if it has no user namespace of its own.
func rangesOf(n *runtimeapi.UserNamespace) []Range {
	var ranges []Range
	for _, list := range [][]*runtimeapi.IDMapping{n.GetUids(), n.GetGids()} {
		for _, m := range list {
			ranges = append(ranges, Range{First: m.GetHostId(), Length: m.GetLength()})
		}
	}
	return ranges
}

// rangeOf is the one range that a sandbox has for users and groups; false if it has another kind of mapping, which
// podsync never makes.
func rangeOf(n *runtimeapi.UserNamespace) (Range, bool) {
	ranges := rangesOf(n)
	if len(ranges) != 2 || len(n.GetUids()) != 1 || ranges[0] != ranges[1] || n.GetUids()[0].GetContainerId() != 0 ||
		n.GetGids()[0].GetContainerId() != 0 {
		return Range{}, false
	}
	return ranges[0], ranges[0].check() == nil
}
