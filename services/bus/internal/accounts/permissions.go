package accounts

import (
	"fmt"
	"slices"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
)

// Permissions are the subjects that a role may publish on and subscribe to in its own account, sorted.
type Permissions struct {
	Publish   []string
	Subscribe []string
}

// For returns what the contract grants to r. It fails if the contract says what the bus cannot
// enforce: that a role may read some of an owner's keys in a bucket and not all of them.
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
	for _, key := range b.KeysOf(r) {
		p.Publish = append(p.Publish, subject.Entry(b.Name, key))
	}
	for _, owner := range b.Owners() {
		may, err := reads(b, owner, r)
		if err != nil {
			return err
		}
		if !may {
			continue
		}
		p.Publish = append(p.Publish, subject.ListAs(r, b.Name, owner))
		for _, key := range b.KeysOf(owner) {
			p.Subscribe = append(p.Subscribe, subject.Entry(b.Name, key))
		}
		if owner == r {
			// A writer puts its own marks, and reads the one of its life before.
			p.Publish = append(p.Publish, subject.Entry(b.Name, subject.EpochKeys(r)),
				subject.DirectGetKey(b.Name, r, subject.EpochKeys(r)))
		}
	}
	if b.ReadableBy(r) {
		p.Subscribe = append(p.Subscribe, subject.Entries(b.Name))
	}
	return nil
}

// reads reports whether r reads what an owner has in a bucket.
func reads(b subject.Bucket, owner, r role.Role) (bool, error) {
	some, all := owner == r, true
	for _, g := range b.Grants {
		if g.Owner != owner || owner == r {
			continue
		}
		if slices.Contains(g.Readers, r) {
			some = true
		} else {
			all = false
		}
	}
	if some && !all {
		return false,
			fmt.Errorf("bucket %s: %s is a reader of some keys of %s only; make it a reader of all, or move the keys to "+
				"another bucket", b.Name, r, owner)
	}
	return some, nil
}
