// Package accounts generates the NATS accounts and permissions of all roles from proto/subject.
//
// Each role has its own account with its own part of every bucket that it writes. It imports what it may read from
// other roles, and exports its keys only to the accounts that may read them. A subject of one account does not exist
// in another, so no reply subject, stream or consumer that a service names reaches another service's keys. Within an
// account, permissions limit the service to what the contract grants it. The server denies everything else.
package accounts

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/jwt/v2"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
)

// System is the name of the account in which the server itself speaks.
const System = "SYS"

// storeHeadroom is what an account's store may hold beside its streams' own bounds.
const storeHeadroom = 8 << 20

// Keys are the public nkeys of who signs in.
type Keys struct {
	// Roles are the services' own.
	Roles map[role.Role]string
	// Admins make the streams of an account, from inside the server's process.
	Admins map[role.Role]string
	// System hears what the server says of connections, from inside its process.
	System string
	// Viewer reads everything and writes nothing, over TCP; empty for none.
	Viewer string
}

// Config is the accounts' part of a configuration of nats-server, which reads JSON.
func Config(k Keys) (string, error) {
	all := map[string]account{
		System: {Users: []user{{NKey: k.System, Connections: inside}}, Limits: limits{Payload: subject.MaxPayload}},
	}
	for _, r := range role.All() {
		a, err := of(r, k)
		if err != nil {
			return "", err
		}
		all[string(r)] = a
	}
	if k.Viewer != "" {
		all[Viewer] = viewer(k.Viewer)
	}
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false) // the server knows no escapes of Unicode, and ">" is a wildcard
	if err := enc.Encode(map[string]any{"accounts": all, "system_account": System}); err != nil {
		return "", fmt.Errorf("accounts: %w", err)
	}
	return text.String(), nil
}

// inside and outside are where a connection comes from, as the server sees it: that of a service has come through
// the bus's unix socket and is handed over within the process.
var (
	inside  = []string{jwt.ConnectionTypeInProcess}
	outside = []string{jwt.ConnectionTypeStandard}
)

// account is an account as nats-server's configuration spells it.
type account struct {
	Users     []user           `json:"users"`
	JetStream *jetStreamLimits `json:"jetstream,omitempty"`
	Limits    limits           `json:"limits"`
	Exports   []export         `json:"exports,omitempty"`
	Imports   []imported       `json:"imports,omitempty"`
}

type user struct {
	NKey        string      `json:"nkey"`
	Permissions *permission `json:"permissions,omitempty"`
	Connections []string    `json:"allowed_connection_types"`
}

type permission struct {
	Publish   subjects `json:"publish"`
	Subscribe subjects `json:"subscribe"`
}

type subjects struct {
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
}

type jetStreamLimits struct {
	Memory    int64 `json:"max_memory"`
	Store     int64 `json:"max_store"`
	Streams   int   `json:"max_streams"`
	Consumers int   `json:"max_consumers"`
}

// limits bound what an account's connections may send and ask for. What is published is passed on to subscribers
// before a stream judges its size.
type limits struct {
	Payload int32 `json:"max_payload"`
}

type export struct {
	Stream   string   `json:"stream,omitempty"`
	Service  string   `json:"service,omitempty"`
	Response string   `json:"response_type,omitempty"`
	Accounts []string `json:"accounts"`
}

type source struct {
	Account string `json:"account"`
	Subject string `json:"subject"`
}

type imported struct {
	Stream  *source `json:"stream,omitempty"`
	Service *source `json:"service,omitempty"`
	To      string  `json:"to,omitempty"`
}

// of is the account of a role.
func of(r role.Role, k Keys) (account, error) {
	p, err := For(r)
	if err != nil {
		return account{}, fmt.Errorf("contract: %w", err)
	}
	a := account{Users: []user{{NKey: k.Roles[r], Permissions: p.config(), Connections: inside}}}
	if limits := limitsOf(r); limits != nil {
		a.JetStream = limits
		a.Users = append(a.Users, user{NKey: k.Admins[r], Connections: inside})
	}
	a.Limits = limits{Payload: subject.MaxPayloadOf(r)}
	for _, b := range subject.Buckets() {
		if err := a.bucket(b, r, k.Viewer != ""); err != nil {
			return account{}, fmt.Errorf("contract: %w", err)
		}
	}
	for _, e := range subject.Events() {
		a.event(e, r, k.Viewer != "")
	}
	for _, e := range subject.Outboxes() {
		a.outbox(e, r)
	}
	return a, nil
}

// Stores reports whether the account of r has streams.
func Stores(r role.Role) bool { return limitsOf(r) != nil }

// StoreBytes is what all accounts may hold together.
func StoreBytes() int64 {
	var sum int64
	for _, r := range role.All() {
		if l := limitsOf(r); l != nil {
			sum += l.Store
		}
	}
	return sum
}

func limitsOf(r role.Role) *jetStreamLimits {
	var l jetStreamLimits
	for _, b := range subject.Buckets() {
		if slices.Contains(b.Owners(), r) {
			l.Streams++
			l.Store += b.MaxBytes
		}
	}
	if r == subject.OutboxReader {
		l.Streams++
		l.Store += subject.OutboxMaxBytes
	}
	if l.Streams == 0 {
		return nil
	}
	l.Store += storeHeadroom
	l.Consumers = 1 // 0 would be any number; the outbox's is the only one
	return &l
}

// bucket adds what the account gives and takes of a bucket.
func (a *account) bucket(b subject.Bucket, r role.Role, viewed bool) error {
	for _, owner := range b.Owners() {
		if owner == r {
			readers, err := readersOf(b, owner)
			if err != nil {
				return err
			}
			if viewed {
				readers = append(readers, Viewer)
			}
			if len(readers) == 0 {
				continue // an export without an importer would be open to all accounts
			}
			for _, key := range b.KeysOf(owner) {
				a.Exports = append(a.Exports, export{Stream: subject.Entry(b.Name, key), Accounts: readers})
			}
			a.Exports = append(a.Exports,
				export{Service: subject.DirectGet(b.Name, owner), Response: "stream", Accounts: readers})
			continue
		}
		if may, err := reads(b, owner, r); err != nil {
			return err
		} else if may {
			a.take(b, owner)
		}
	}
	return nil
}

// take imports what an owner has in a bucket.
func (a *account) take(b subject.Bucket, owner role.Role) {
	from := string(owner)
	for _, key := range b.KeysOf(owner) {
		a.Imports = append(a.Imports, imported{Stream: &source{from, subject.Entry(b.Name, key)}})
	}
	a.Imports = append(a.Imports,
		imported{Service: &source{from, subject.DirectGet(b.Name, owner)}, To: subject.List(b.Name, owner)})
}

func readersOf(b subject.Bucket, owner role.Role) ([]string, error) {
	var readers []string
	for _, r := range role.All() {
		may, err := reads(b, owner, r)
		if err != nil {
			return nil, err
		}
		if may && r != owner {
			readers = append(readers, string(r))
		}
	}
	return readers, nil
}

func (a *account) event(e subject.Event, r role.Role, viewed bool) {
	if e.Owner == r {
		readers := names(e.Readers)
		if viewed {
			readers = append(readers, Viewer)
		}
		a.Exports = append(a.Exports, export{Stream: e.Pattern, Accounts: readers})
	} else if slices.Contains(e.Readers, r) {
		a.Imports = append(a.Imports, imported{Stream: &source{string(e.Owner), e.Pattern}})
	}
}

// outbox adds the account's part in a subject of the outbox. The stream belongs to the reader.
func (a *account) outbox(e subject.Event, r role.Role) {
	switch {
	case e.Owner == r && r != subject.OutboxReader:
		a.Imports = append(a.Imports, imported{Service: &source{string(subject.OutboxReader), e.Pattern}})
	case r == subject.OutboxReader && e.Owner != r:
		a.Exports = append(a.Exports,
			export{Service: e.Pattern, Response: "singleton", Accounts: []string{string(e.Owner)}})
	}
}

func names(roles []role.Role) []string {
	list := make([]string, 0, len(roles))
	for _, r := range roles {
		list = append(list, string(r))
	}
	return list
}

// config is the permissions in the server's terms. An empty list would mean "everything" there.
func (p Permissions) config() *permission {
	list := func(allow []string) subjects {
		if len(allow) == 0 {
			return subjects{Deny: []string{">"}}
		}
		return subjects{Allow: allow}
	}
	return &permission{Publish: list(p.Publish), Subscribe: list(p.Subscribe)}
}
