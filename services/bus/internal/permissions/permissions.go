// Package permissions derives from the contract what each role may do on the bus.
//
// Its input is proto/subject, its output a list of subjects per role. Whatever the contract does not
// grant is not in the list, and the server denies it.
package permissions

import (
	"fmt"
	"slices"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
)

// Permissions are the subjects that a role may publish on and subscribe to, sorted.
type Permissions struct {
	Publish   []string
	Subscribe []string
}

// For returns what the contract grants to r. It fails if the contract says what the bus cannot
// enforce: that a role may read some keys of a bucket and not all of them.
func For(r role.Role) (Permissions, error) {
	p := Permissions{Subscribe: []string{subject.Inbox(r) + ".>"}}
	for _, b := range subject.Buckets() {
		if err := p.bucket(b, r); err != nil {
			return Permissions{}, err
		}
	}
	for _, e := range subject.Events() {
		if e.Owner == r {
			p.Publish = append(p.Publish, e.Pattern)
		}
		if slices.Contains(e.Readers, r) {
			p.Subscribe = append(p.Subscribe, e.Pattern)
		}
	}
	for _, e := range subject.Outboxes() {
		if e.Owner == r {
			p.Publish = append(p.Publish, e.Pattern)
		}
		// Its readers take it from the stream's consumer, which keeps what they have not delivered.
		if slices.Contains(e.Readers, r) {
			p.Publish = append(p.Publish, subject.OutboxNext, subject.OutboxInfo, subject.OutboxAcks)
		}
	}
	for _, list := range []*[]string{&p.Publish, &p.Subscribe} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return p, nil
}

func (p *Permissions) bucket(b subject.Bucket, r role.Role) error {
	owns, reads := false, false
	for _, g := range b.Grants {
		if g.Owner == r {
			owns = true
			p.Publish = append(p.Publish, subject.Entry(b.Name, g.Pattern))
		}
		reads = reads || slices.Contains(g.Readers, r)
	}
	if owns {
		// The marks are part of owning: a writer puts its own, and reads the one of its life before.
		p.Publish = append(p.Publish, subject.Entry(b.Name, subject.EpochKeys(r)), subject.DirectGetKey(b.Name, subject.EpochKeys(r)))
	}
	switch {
	case b.ReadableBy(r):
		p.Subscribe = append(p.Subscribe, subject.Entries(b.Name))
		p.Publish = append(p.Publish, subject.DirectGet(b.Name))
	case reads:
		return fmt.Errorf("bucket %s: %s is a reader of some keys only; make it a reader of all, or move the keys to another bucket", b.Name, r)
	}
	return nil
}

// Server returns the permissions in the server's terms. An empty list would mean "everything" there.
func (p Permissions) Server() *server.Permissions {
	list := func(allow []string) *server.SubjectPermission {
		if len(allow) == 0 {
			return &server.SubjectPermission{Deny: []string{">"}}
		}
		return &server.SubjectPermission{Allow: allow}
	}
	return &server.Permissions{Publish: list(p.Publish), Subscribe: list(p.Subscribe)}
}
