package subject

import (
	"slices"
	"strings"

	"github.com/microlet/microlet/proto/role"
)

// The names that JetStream itself gives to a bucket's parts. They are fixed by NATS (ADR-8 for
// the key-value store, ADR-31 for direct gets), and are built here so that the permissions and
// the client cannot disagree about them.

// Stream is the name of the stream that holds an owner's keys of a bucket. A bucket with several owners has a
// stream in the account of each.
//
//	KV_<bucket>_<service>
func Stream(bucket string, owner role.Role) string {
	return "KV_" + bucket + "_" + mustToken(string(owner))
}

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

// DirectGet is the request for any number of the entries that an owner has in a bucket, in the owner's account.
//
//	$JS.API.DIRECT.GET.KV_<bucket>_<service>
func DirectGet(bucket string, owner role.Role) string {
	return "$JS.API.DIRECT.GET." + Stream(bucket, owner)
}

// DirectGetKey is the request for the newest entry of one of the owner's keys, or of what matches a pattern in a
// permission.
//
//	$JS.API.DIRECT.GET.KV_<bucket>_<service>.$KV.<bucket>.<key>
func DirectGetKey(bucket string, owner role.Role, key string) string {
	return DirectGet(bucket, owner) + "." + Entry(bucket, key)
}

// List is the name under which the account of a reader imports the DirectGet of an owner.
//
//	microlet.list.<bucket>.<service>
func List(bucket string, owner role.Role) string {
	return "microlet.list." + mustToken(bucket) + "." + mustToken(string(owner))
}

// ListAs is the request of a service for an owner's entries: DirectGet for its own, List for another's.
//
//	$JS.API.DIRECT.GET.KV_<bucket>_<service>
//	microlet.list.<bucket>.<service>
func ListAs(r role.Role, bucket string, owner role.Role) string {
	if r == owner {
		return DirectGet(bucket, owner)
	}
	return List(bucket, owner)
}

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

// ParseWriter takes a Writer apart; ok is false for anything else.
func ParseWriter(writer string) (r role.Role, replica string, ok bool) {
	return ParseHeartbeatKey(writer)
}

// Matches reports whether a subject or key matches a pattern in NATS terms.
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

// Overlap reports whether any name matches both patterns.
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

// Owner is the service that may put a key, epoch marks included; ok is false when none may, and for a key that no
// function here builds. The bus lets an owner publish such a key, because a wildcard matches tokens of any length.
func (b Bucket) Owner(key string) (role.Role, bool) {
	for token := range strings.SplitSeq(strings.TrimPrefix(key, epochPrefix+"."), ".") {
		if !isToken(token) {
			return "", false
		}
	}
	for _, g := range b.Grants {
		if Matches(g.Pattern, key) || Matches(EpochKeys(g.Owner), key) {
			return g.Owner, true
		}
	}
	return "", false
}

// Owners are the services that put anything into the bucket, in the order of its grants.
func (b Bucket) Owners() []role.Role {
	return b.OwnersOf(">")
}

// OwnersOf are the owners of any key that matches a pattern, in the order of the bucket's grants.
func (b Bucket) OwnersOf(pattern string) []role.Role {
	var owners []role.Role
	for _, g := range b.Grants {
		if Overlap(pattern, g.Pattern) && !slices.Contains(owners, g.Owner) {
			owners = append(owners, g.Owner)
		}
	}
	return owners
}

// KeysOf are the patterns of an owner's keys, its epoch marks among them; none for who owns nothing here. They do not
// overlap.
func (b Bucket) KeysOf(owner role.Role) []string {
	var keys []string
	for _, g := range b.Grants {
		if g.Owner == owner {
			keys = append(keys, g.Pattern)
		}
	}
	marks := EpochKeys(owner)
	if len(keys) == 0 || slices.ContainsFunc(keys, func(key string) bool { return Overlap(key, marks) }) {
		return keys
	}
	return append(keys, marks)
}

// MaxPayloadOf is the largest message that a role has to send, and that the bus takes of it.
func MaxPayloadOf(r role.Role) int32 {
	largest := int32(OutboxMaxEntry)
	for _, b := range Buckets() {
		if slices.Contains(b.Owners(), r) {
			largest = max(largest, b.MaxEntry)
		}
	}
	return largest
}

// ReadableBy reports whether r may read every key of the bucket, as owner or reader.
func (b Bucket) ReadableBy(r role.Role) bool {
	for _, g := range b.Grants {
		if g.Owner != r && !slices.Contains(g.Readers, r) {
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
