package subject

import (
	"strings"

	"github.com/microlet/microlet/proto/role"
)

// The names that JetStream itself gives to a bucket's parts. They are fixed by NATS (ADR-8 for
// the key-value store, ADR-31 for direct gets), and are built here so that the permissions and
// the client cannot disagree about them.

// Stream is the name of the stream under a bucket.
//
//	KV_<bucket>
func Stream(bucket string) string { return "KV_" + bucket }

// Entry is the subject on which a key is put.
//
//	$KV.<bucket>.<key>
func Entry(bucket, key string) string { return "$KV." + bucket + "." + key }

// Entries matches every Entry of a bucket, epoch marks too.
//
//	$KV.<bucket>.>
func Entries(bucket string) string { return "$KV." + bucket + ".>" }

// ParseEntry takes an Entry apart; ok is false for any other subject.
func ParseEntry(subj string) (bucket, key string, ok bool) {
	rest, ok := strings.CutPrefix(subj, "$KV.")
	if !ok {
		return "", "", false
	}
	bucket, key, ok = strings.Cut(rest, ".")
	return bucket, key, ok && bucket != "" && key != ""
}

// EpochKeys matches the epoch marks of every replica of r.
//
//	_epoch.<service>.*
func EpochKeys(r role.Role) string { return epochPrefix + "." + mustToken(string(r)) + ".*" }

// DirectGet is the request for any number of a bucket's entries.
//
//	$JS.API.DIRECT.GET.KV_<bucket>
func DirectGet(bucket string) string { return "$JS.API.DIRECT.GET." + Stream(bucket) }

// DirectGetKey is the request for the newest entry of a key, or of what matches a pattern in a permission.
//
//	$JS.API.DIRECT.GET.KV_<bucket>.$KV.<bucket>.<key>
func DirectGetKey(bucket, key string) string { return DirectGet(bucket) + "." + Entry(bucket, key) }

// OutboxNext is the request for the next record of the outbox.
//
//	$JS.API.CONSUMER.MSG.NEXT.OUTBOX.deliver
const OutboxNext = "$JS.API.CONSUMER.MSG.NEXT." + OutboxStream + "." + OutboxConsumer

// OutboxInfo is the request for the state of the outbox's consumer.
//
//	$JS.API.CONSUMER.INFO.OUTBOX.deliver
const OutboxInfo = "$JS.API.CONSUMER.INFO." + OutboxStream + "." + OutboxConsumer

// OutboxAcks matches the acknowledgements of the outbox's records.
//
//	$JS.ACK.OUTBOX.deliver.>
const OutboxAcks = "$JS.ACK." + OutboxStream + "." + OutboxConsumer + ".>"

// Inbox is the prefix of the subjects on which a service takes answers. Each has its own,
// so that none can listen to what another was answered.
//
//	_INBOX_<service>
func Inbox(r role.Role) string { return "_INBOX_" + mustToken(string(r)) }

// Writer is how a writer signs its entries.
//
//	<service>.<replica>
func Writer(r role.Role, replica string) string { return HeartbeatKey(r, replica) }

// Matches says whether a subject or key matches a pattern in NATS terms.
func Matches(pattern, name string) bool {
	p, n := strings.Split(pattern, "."), strings.Split(name, ".")
	for i, t := range p {
		if t == ">" {
			return len(n) > i
		}
		if i >= len(n) || (t != "*" && t != n[i]) {
			return false
		}
	}
	return len(p) == len(n)
}

// Overlap says whether any name matches both patterns.
func Overlap(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := 0; i < len(as) && i < len(bs); i++ {
		if as[i] == ">" || bs[i] == ">" {
			return true
		}
		if as[i] != "*" && bs[i] != "*" && as[i] != bs[i] {
			return false
		}
	}
	return len(as) == len(bs)
}

// Owner is the service that may put a key, epoch marks included; ok is false when none may.
func (b Bucket) Owner(key string) (role.Role, bool) {
	for _, g := range b.Grants {
		if Matches(g.Pattern, key) || Matches(EpochKeys(g.Owner), key) {
			return g.Owner, true
		}
	}
	return "", false
}

// Owners are the services that put anything into the bucket, in the order of its grants.
func (b Bucket) Owners() []role.Role {
	var owners []role.Role
	seen := map[role.Role]bool{}
	for _, g := range b.Grants {
		if !seen[g.Owner] {
			seen[g.Owner] = true
			owners = append(owners, g.Owner)
		}
	}
	return owners
}

// ReadableBy says whether r may read the whole bucket: it owns, or is a reader of, every key.
func (b Bucket) ReadableBy(r role.Role) bool {
	for _, g := range b.Grants {
		may := g.Owner == r
		for _, reader := range g.Readers {
			may = may || reader == r
		}
		if !may {
			return false
		}
	}
	return true
}

// BucketNamed returns the contract's bucket of that name.
func BucketNamed(name string) (Bucket, bool) {
	for _, b := range Buckets() {
		if b.Name == name {
			return b, true
		}
	}
	return Bucket{}, false
}
