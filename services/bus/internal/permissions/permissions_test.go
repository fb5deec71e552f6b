package permissions

import (
	"slices"
	"strings"
	"testing"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
)

// name is a subject that only one role may publish, by the contract.
type name struct {
	pattern string
	owner   role.Role
}

// names are all subjects of the contract that carry somebody's word.
func names() []name {
	var all []name
	for _, b := range subject.Buckets() {
		for _, g := range b.Grants {
			all = append(all, name{subject.Entry(b.Name, g.Pattern), g.Owner})
		}
		for _, r := range b.Owners() {
			all = append(all, name{subject.Entry(b.Name, subject.EpochKeys(r)), r})
		}
	}
	for _, e := range slices.Concat(subject.Events(), subject.Outboxes()) {
		all = append(all, name{e.Pattern, e.Owner})
	}
	return all
}

func grants(t *testing.T) map[role.Role]Permissions {
	t.Helper()
	all := map[role.Role]Permissions{}
	for _, r := range role.All() {
		p, err := For(r)
		if err != nil {
			t.Fatal(err)
		}
		all[r] = p
	}
	return all
}

// faults returns what of the contract is not granted to its owner, or is granted to another.
func faults(contract []name, granted map[role.Role]Permissions) []string {
	var found []string
	for _, n := range contract {
		if !slices.Contains(granted[n.owner].Publish, n.pattern) {
			found = append(found, n.pattern+" is not granted to its owner "+string(n.owner))
		}
		for r, p := range granted {
			if r == n.owner {
				continue
			}
			for _, pattern := range p.Publish {
				if subject.Overlap(pattern, n.pattern) {
					found = append(found, n.pattern+" of "+string(n.owner)+" may also be published by "+string(r)+" as "+pattern)
				}
			}
		}
	}
	for i, a := range contract {
		for _, b := range contract[:i] {
			if a.owner != b.owner && subject.Overlap(a.pattern, b.pattern) {
				found = append(found, a.pattern+" of "+string(a.owner)+" overlaps "+b.pattern+" of "+string(b.owner))
			}
		}
	}
	return found
}

func TestEveryNameHasExactlyOnePublisher(t *testing.T) {
	if got := len(names()); got < 30 {
		t.Fatalf("the contract has %d names, which cannot be all of it", got)
	}
	for _, fault := range faults(names(), grants(t)) {
		t.Error(fault)
	}
}

// The test above must be able to fail.
func TestFaultsAreFound(t *testing.T) {
	tests := map[string]struct {
		alter func(map[role.Role]Permissions)
		extra []name
		want  string
	}{
		"a second publisher": {
			alter: func(g map[role.Role]Permissions) { add(g, role.Stats, "$KV.NODE.pressure") },
			want:  "may also be published by stats",
		},
		"a second publisher by wildcard": {
			alter: func(g map[role.Role]Permissions) { add(g, role.ImageGC, "$KV.>") },
			want:  "may also be published by imagegc",
		},
		"a missing publisher": {
			alter: func(g map[role.Role]Permissions) { g[role.PLEG] = Permissions{} },
			want:  "is not granted to its owner pleg",
		},
		"another's mark": {
			alter: func(g map[role.Role]Permissions) { add(g, role.Prober, "$KV.NODE._epoch.*.*") },
			want:  "may also be published by prober",
		},
		"another's outbox": {
			alter: func(g map[role.Role]Permissions) { add(g, role.Prober, "outbox.*") },
			want:  "outbox.podsync of podsync may also be published by prober",
		},
		"patterns that overlap": {
			extra: []name{{"$KV.NODE.*", role.Stats}},
			want:  "$KV.NODE.* of stats overlaps $KV.NODE.runtime of podsync",
		},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			granted := grants(t)
			if tt.alter != nil {
				tt.alter(granted)
			}
			found := faults(append(names(), tt.extra...), granted)
			if !slices.ContainsFunc(found, func(s string) bool { return strings.Contains(s, tt.want) }) {
				t.Errorf("found %q, want one that contains %q", found, tt.want)
			}
		})
	}
}

func add(g map[role.Role]Permissions, r role.Role, pattern string) {
	p := g[r]
	p.Publish = append(slices.Clone(p.Publish), pattern)
	g[r] = p
}

// A role reads what the contract lets it read, and no role may ask JetStream for anything that alters.
func TestReadersAndTheAPI(t *testing.T) {
	granted := grants(t)
	for _, b := range subject.Buckets() {
		for r, p := range granted {
			may := b.ReadableBy(r)
			if got := slices.Contains(p.Subscribe, subject.Entries(b.Name)); got != may {
				t.Errorf("%s hears %s: %v, want %v", r, b.Name, got, may)
			}
			if got := slices.Contains(p.Publish, subject.DirectGet(b.Name)); got != may {
				t.Errorf("%s lists %s: %v, want %v", r, b.Name, got, may)
			}
		}
		for _, g := range b.Grants {
			for _, reader := range g.Readers {
				if !b.ReadableBy(reader) {
					t.Errorf("%s is a reader of %s/%s and cannot read the bucket", reader, b.Name, g.Pattern)
				}
			}
		}
	}
	for r, p := range granted {
		for _, pattern := range p.Publish {
			for _, forbidden := range []string{
				"$JS.API.STREAM.>", "$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.DURABLE.>",
				"$JS.API.CONSUMER.DELETE.>", "$JS.API.CONSUMER.PAUSE.>", "$JS.API.CONSUMER.RESET.>", "$SYS.>",
			} {
				if subject.Overlap(pattern, forbidden) {
					t.Errorf("%s may publish %s, which reaches %s", r, pattern, forbidden)
				}
			}
		}
		for _, pattern := range p.Subscribe {
			for other := range granted {
				if other != r && subject.Overlap(pattern, subject.Inbox(other)+".>") {
					t.Errorf("%s hears %s, which reaches the answers to %s", r, pattern, other)
				}
			}
		}
	}
	for r := range granted {
		reads := slices.Contains(granted[r].Publish, subject.OutboxNext)
		if reads != (r == role.NodeStatus) {
			t.Errorf("%s takes from the outbox: %v", r, reads)
		}
	}
}

// A role that the contract does not know is granted nothing but an inbox, and never everything.
func TestNothingGrantedIsNotEverything(t *testing.T) {
	s := Permissions{}.Server()
	if !slices.Equal(s.Publish.Deny, []string{">"}) || !slices.Equal(s.Subscribe.Deny, []string{">"}) {
		t.Errorf("empty permissions became %+v %+v", s.Publish, s.Subscribe)
	}
}
