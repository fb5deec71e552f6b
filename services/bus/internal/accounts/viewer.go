package accounts

import "github.com/microlet/microlet/proto/subject"

// Viewer is the name of the account of who looks at the bus with the tools of NATS.
const Viewer = "viewer"

// viewer is that account: it imports every bucket and every hint, and has nothing of its own.
func viewer(key string) account {
	p := Permissions{Subscribe: []string{"_INBOX.>"}}
	a := account{Limits: limits{Payload: subject.OutboxMaxEntry}}
	for _, b := range subject.Buckets() {
		for _, owner := range b.Owners() {
			a.take(b, owner)
			p.Publish = append(p.Publish, subject.List(b.Name, owner))
		}
		p.Subscribe = append(p.Subscribe, subject.Entries(b.Name))
	}
	for _, e := range subject.Events() {
		a.Imports = append(a.Imports, imported{Stream: &source{string(e.Owner), e.Pattern}})
		p.Subscribe = append(p.Subscribe, e.Pattern)
	}
	a.Users = []user{{NKey: key, Permissions: p.config(), Connections: outside}}
	return a
}
