package record

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// Where the API server keeps what is recorded.
const (
	podPrefix   = "/registry/pods/"
	eventPrefix = "/registry/events/"
	nodePrefix  = "/registry/minions/"
	leasePrefix = "/registry/leases/kube-node-lease/"
)

// maxMessage is far above what a list of a test's objects takes.
const maxMessage = 256 << 20

// Options say what to record.
type Options struct {
	// Address of etcd, host:port.
	Address string
	// TLS holds a client certificate that etcd accepts.
	TLS *tls.Config
	// Node is the name of the node whose object and Lease are recorded.
	Node string
}

// source is the connection to etcd.
type source struct {
	conn  *grpc.ClientConn
	kv    etcdserverpb.KVClient
	watch etcdserverpb.WatchClient
	keys  []span

	mu     sync.Mutex // guards sending on stream
	stream etcdserverpb.Watch_WatchClient
}

// span is a range of keys: a prefix, or one key.
type span struct{ from, to []byte }

func prefix(p string) span {
	end := []byte(p)
	end[len(end)-1]++
	return span{from: []byte(p), to: end}
}

func dial(o Options) (*source, error) {
	conn, err := grpc.NewClient(o.Address, grpc.WithTransportCredentials(credentials.NewTLS(o.TLS)), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", o.Address, err)
	}
	return &source{
		conn: conn, kv: etcdserverpb.NewKVClient(conn), watch: etcdserverpb.NewWatchClient(conn),
		keys: []span{prefix(podPrefix), prefix(eventPrefix), {from: []byte(nodePrefix + o.Node)},
			{from: []byte(leasePrefix + o.Node)}},
	}, nil
}

func (s *source) close() error { return s.conn.Close() }

// list returns all objects as of one revision.
func (s *source) list(ctx context.Context, now time.Time) ([]Entry, int64, error) {
	var all []Entry
	var revision int64
	for _, k := range s.keys {
		got, err := s.kv.Range(ctx, &etcdserverpb.RangeRequest{Key: k.from, RangeEnd: k.to, Revision: revision})
		if err != nil {
			return nil, 0, fmt.Errorf("list %s from etcd: %w", k.from, err)
		}
		if revision == 0 {
			revision = got.GetHeader().GetRevision()
		}
		for _, kv := range got.GetKvs() {
			e, err := entry(kv, false, now)
			if err != nil {
				return nil, 0, err
			}
			all = append(all, e)
		}
	}
	return all, revision, nil
}

// revision is etcd's present one.
func (s *source) revision(ctx context.Context) (int64, error) {
	got, err := s.kv.Range(ctx, &etcdserverpb.RangeRequest{Key: []byte(nodePrefix), CountOnly: true})
	if err != nil {
		return 0, fmt.Errorf("ask etcd for its revision: %w", err)
	}
	return got.GetHeader().GetRevision(), nil
}

// askProgress makes etcd say up to where the watches are complete. Between two streams it does
// nothing, and one that breaks is its reader's to see: the caller asks again.
func (s *source) askProgress() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream != nil {
		_ = s.stream.Send(&etcdserverpb.WatchRequest{
			RequestUnion: &etcdserverpb.WatchRequest_ProgressRequest{
				ProgressRequest: &etcdserverpb.WatchProgressRequest{},
			},
		})
	}
}

// run follows all keys from after the revision until the context ends or the record cannot go on.
// A stream that breaks is followed by another one from where the last had come to, key range by key range.
func (s *source) run(ctx context.Context, revision int64, add func(...Entry), passed func(int64)) error {
	next := make([]int64, len(s.keys))
	for i := range next {
		next[i] = revision + 1
	}
	for {
		err := s.follow(ctx, next, add, passed)
		var lost *lostError
		if ctx.Err() != nil || errors.As(err, &lost) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lostError is the end of a record: etcd no longer has what comes next.
type lostError struct{ reason string }

func (e *lostError) Error() string { return e.reason }

func (s *source) follow(ctx context.Context, next []int64, add func(...Entry), passed func(int64)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.watch.Watch(ctx)
	if err != nil {
		return err
	}
	for i, k := range s.keys {
		if err := stream.Send(&etcdserverpb.WatchRequest{
			RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: &etcdserverpb.WatchCreateRequest{
				Key: k.from, RangeEnd: k.to, StartRevision: next[i], WatchId: int64(i + 1),
			}},
		}); err != nil {
			return err
		}
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stream = nil
	}()
	for created := 0; ; {
		got, err := stream.Recv()
		if err != nil {
			return err
		}
		now := time.Now()
		if got.GetCanceled() {
			return &lostError{fmt.Sprintf("etcd ended watch %d (compacted at revision %d): %s", got.GetWatchId(),
				got.GetCompactRevision(), got.GetCancelReason())}
		}
		if got.GetCreated() {
			if created++; created == len(s.keys) {
				s.mu.Lock()
				s.stream = stream
				s.mu.Unlock()
			}
			continue
		}
		entries := make([]Entry, 0, len(got.GetEvents()))
		for _, ev := range got.GetEvents() {
			e, err := entry(ev.GetKv(), ev.GetType() == mvccpb.Event_DELETE, now)
			if err != nil {
				return &lostError{err.Error()}
			}
			entries = append(entries, e)
		}
		switch id := got.GetWatchId(); {
		case len(entries) > 0:
			add(entries...)
			next[id-1] = entries[len(entries)-1].Revision + 1
		case id == -1: // the answer to askProgress: all watches of the stream have come this far
			revision := got.GetHeader().GetRevision()
			passed(revision)
			for i := range next {
				next[i] = max(next[i], revision+1)
			}
		}
	}
}

// entry decodes what etcd holds.
func entry(kv *mvccpb.KeyValue, deleted bool, now time.Time) (Entry, error) {
	e := Entry{Revision: kv.GetModRevision(), At: now, Key: string(kv.GetKey()), Deleted: deleted}
	if deleted {
		return e, nil
	}
	object, err := decode(kv.GetValue(), e.Revision)
	if err != nil {
		return e, fmt.Errorf("decode %s: %w", e.Key, err)
	}
	e.Object = object
	return e, nil
}

func decode(value []byte, revision int64) (runtime.Object, error) {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil)
	if err != nil {
		return nil, err
	}
	access, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	access.SetResourceVersion(strconv.FormatInt(revision, 10))
	return object, nil
}
