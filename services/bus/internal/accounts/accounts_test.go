package accounts

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

// words are all subjects of the contract that carry data of a service.
func words() []name {
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
					found = append(found,
						n.pattern+" of "+string(n.owner)+" may also be published by "+string(r)+" as "+pattern)
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
	if got := len(words()); got < 30 {
		t.Fatalf("the contract has %d names, which cannot be all of it", got)
	}
	for _, fault := range faults(words(), grants(t)) {
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
			found := faults(append(words(), tt.extra...), granted)
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
			for _, owner := range b.Owners() {
				may, err := reads(b, owner, r)
				if err != nil {
					t.Fatal(err)
				}
				for _, key := range b.KeysOf(owner) {
					if got := slices.Contains(p.Subscribe, subject.Entry(b.Name, key)); got != may {
						t.Errorf("%s hears %s/%s of %s: %v, want %v", r, b.Name, key, owner, got, may)
					}
				}
				if got := slices.Contains(p.Publish, subject.ListAs(r, b.Name, owner)); got != may {
					t.Errorf("%s lists %s of %s: %v, want %v", r, b.Name, owner, got, may)
				}
			}
		}
		for _, g := range b.Grants {
			for _, reader := range g.Readers {
				if may, err := reads(b, g.Owner, reader); !may || err != nil {
					t.Errorf("%s is a reader of %s/%s and cannot read it: %v", reader, b.Name, g.Pattern, err)
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

// A reader of some keys of an owner would get the others with them.
func TestReadersOfSomeKeysAreRefused(t *testing.T) {
	b := subject.Bucket{Name: "B", Grants: []subject.Grant{
		{Pattern: "a", Owner: role.Podsync, Readers: []role.Role{role.PLEG}}, {Pattern: "b", Owner: role.Podsync},
	}}
	if _, err := reads(b, role.Podsync, role.PLEG); err == nil ||
		!strings.Contains(err.Error(), "pleg is a reader of some keys of podsync only") {
		t.Errorf("error is %v", err)
	}
	if err := new(Permissions).bucket(b, role.PLEG); err == nil {
		t.Error("it was granted")
	}
}

// What is granted nothing may do nothing, and not everything.
func TestNothingGrantedIsNotEverything(t *testing.T) {
	s := Permissions{}.config()
	if !slices.Equal(s.Publish.Deny, []string{">"}) || !slices.Equal(s.Subscribe.Deny, []string{">"}) {
		t.Errorf("empty permissions became %+v %+v", s.Publish, s.Subscribe)
	}
}

// testKeys are some keys, each its own.
func testKeys() Keys {
	k := Keys{Roles: map[role.Role]string{}, Admins: map[role.Role]string{}, System: "system", Viewer: "viewer"}
	for _, r := range role.All() {
		k.Roles[r], k.Admins[r] = string(r), "admin of "+string(r)
	}
	return k
}

// What crosses from one account to another is what its owner gives, and nothing that carries data of a service enters
// an account by a request.
func TestWhatCrossesAccounts(t *testing.T) {
	k := testKeys()
	all := map[role.Role]account{}
	for _, r := range role.All() {
		a, err := of(r, k)
		if err != nil {
			t.Fatal(err)
		}
		all[r] = a
	}
	gives := func(owner, subj, to string) bool {
		return slices.ContainsFunc(all[role.Role(owner)].Exports, func(e export) bool {
			return (e.Stream == subj || e.Service == subj) && slices.Contains(e.Accounts, to)
		})
	}
	for r, a := range all {
		for _, e := range a.Exports {
			if len(e.Accounts) == 0 {
				t.Errorf("%s exports %s%s to all accounts", r, e.Stream, e.Service)
			}
			// A service is a way into the account. Lists read, and the outbox's records are signed by their subject.
			if e.Service != "" && !strings.HasPrefix(e.Service, "$JS.API.DIRECT.GET.KV_") &&
				!strings.HasPrefix(e.Service, "outbox.") {
				t.Errorf("%s takes requests on %s", r, e.Service)
			}
		}
		for _, i := range append(slices.Clone(a.Imports), viewer("viewer").Imports...) {
			from := i.Stream
			if from == nil {
				from = i.Service
			}
			to := string(r)
			if i.Service != nil && i.Service.Account == string(r) || i.Stream != nil && i.Stream.Account == string(r) {
				to = Viewer // no account imports from itself
			}
			if !gives(from.Account, from.Subject, to) && !gives(from.Account, from.Subject, Viewer) {
				t.Errorf("%s imports %s of %s, which does not give it", r, from.Subject, from.Account)
			}
		}
	}
	for _, w := range words() {
		if strings.HasPrefix(w.pattern, "outbox.") {
			continue
		}
		for r, a := range all {
			for _, e := range a.Exports {
				if e.Service != "" && subject.Overlap(e.Service, w.pattern) {
					t.Errorf("%s of %s can be requested from %s", w.pattern, w.owner, r)
				}
			}
		}
	}
}

// All shares of the outbox together fit into it, so that no service's records drop another's.
func TestSharesOfTheOutboxFit(t *testing.T) {
	if n := len(subject.Outboxes()); n*subject.OutboxMaxMessages*subject.OutboxMaxEntry > subject.OutboxMaxBytes {
		t.Errorf("%d services may have %d records of %d bytes, more than the %d of the stream", n,
			subject.OutboxMaxMessages, subject.OutboxMaxEntry, subject.OutboxMaxBytes)
	}
}
