package test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/testing/peertest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// signedAs is an entry as a writer would put it.
func signedAs(t *testing.T, writer, content string) []byte {
	t.Helper()
	raw, err := proto.Marshal(wrapperspb.String(content))
	if err != nil {
		t.Fatal(err)
	}
	data, err := proto.Marshal(&busv1.Entry{
		Writer:   writer,
		Epoch:    time.Now().Add(time.Hour).UnixNano(),
		Revision: 1 << 40,
		Value:    raw,
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// request publishes with a reply subject of the attacker's choice, and waits until the bus has dealt with it.
func request(t *testing.T, nc *nats.Conn, subj, reply string, body []byte) {
	t.Helper()
	if err := nc.PublishRequest(subj, reply, body); err != nil {
		t.Fatal(err)
	}
	if err := nc.FlushTimeout(bound); err != nil {
		t.Fatal(err)
	}
}

// A service that was taken over can have the server itself publish what it wrote, on any subject that it names as
// the reply of a direct get. No such subject is a key of another service. No stream or consumer that it may create this
// way receives or holds keys of another service, and no service reads what it forged.
func TestAReplyReachesNoKeys(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var assignments view
	prober := n.peer(role.Prober, "0", "", func(c *bus.Client) {
		assignments = bus.Watch[value](c, subject.Assignment, ">", nil)
	})
	podsync := n.peer(role.Podsync, "0", "", nil)
	owner := podsync.Own(subject.Assignment)
	owner.Put("a-pod", wrapperspb.String("true"))
	owner.Complete()
	proctest.Await(t, bound, "the owner's put is heard", func() bool { _, ok := assignments.Get("a-pod"); return ok })

	pleg, _ := n.raw(role.PLEG)
	own := subject.Entry(subject.Runtime, subject.RuntimeRelist)
	list := subject.DirectGet(subject.Runtime, role.PLEG)
	last, _ := json.Marshal(map[string]any{"last_by_subj": own})
	// The whole entry forged under its own key, then read with another's key as the reply.
	if _, err := pleg.Request(own, signedAs(t, podsync.Writer(), "forged"), bound); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a-pod", "another", "_epoch.podsync.0"} {
		request(t, pleg, list, subject.Entry(subject.Assignment, key), last)
	}
	// And what JetStream gets in a request's body, had from its own entry, which is not an entry then.
	bodies := map[string]string{
		"$JS.API.STREAM.CREATE.MINE":                       `{"name":"MINE","subjects":["$KV.ASSIGNMENT.>"],"storage":"file"}`,
		"$JS.API.STREAM.DELETE.KV_ASSIGNMENT_podsync":      ``,
		"$JS.API.STREAM.PURGE.KV_ASSIGNMENT_podsync":       ``,
		"$JS.API.CONSUMER.CREATE.KV_ASSIGNMENT_podsync.me": `{"stream_name":"KV_ASSIGNMENT_podsync","config":{"name":"me","deliver_subject":"$KV.ASSIGNMENT.a-pod"}}`,
		subject.List(subject.Assignment, role.Podsync):     ``,
	}
	for reply, body := range bodies {
		if _, err := pleg.Request(own, []byte(body), bound); err != nil {
			t.Fatal(err)
		}
		request(t, pleg, list, reply, last)
	}

	// Whatever came of it has come by now: the bus stores in order, and this put came after all of them.
	owner.Put("after", wrapperspb.String("true"))
	proctest.Await(t, bound, "what the owner puts afterwards is heard",
		func() bool { _, ok := assignments.Get("after"); return ok })
	check := func(when string) {
		t.Helper()
		if m, ok := assignments.Get("a-pod"); !ok || m.GetValue() != "true" {
			t.Errorf("%s the prober holds %v for a-pod", when, m)
		}
		if m, ok := assignments.Get("another"); ok {
			t.Errorf("%s the prober holds %q, which only pleg has put", when, m.GetValue())
		}
	}
	check("at once")
	if got := prober.metric("microlet_bus_entries_rejected_total"); got != 0 {
		t.Errorf("%v forged entries reached the prober, which rejected them", got)
	}
	// Who comes later reads what is stored.
	var later view
	n.peer(role.Prober, "1", "", func(c *bus.Client) { later = bus.Watch[value](c, subject.Assignment, ">", nil) })
	proctest.Await(t, bound, "a later reader is in sync", later.Synced)
	assignments = later
	check("in the bucket")
}

// A role that fills its part of a bucket that others write too takes nothing from them.
func TestAFullPartHarmsNoOtherService(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	pleg, _ := n.raw(role.PLEG)
	big := bytes.Repeat([]byte("x"), 15<<10)
	full := false
	for i := range 1000 {
		answer, err := pleg.Request(
			subject.Entry(subject.Heartbeats, subject.HeartbeatKey(role.PLEG, fmt.Sprintf("r%d", i))), big, bound,
		)
		if err != nil {
			t.Fatal(err)
		}
		if full = strings.Contains(string(answer.Data), `"error"`); full {
			break
		}
	}
	if !full {
		t.Fatal("pleg's part of the bucket takes everything")
	}
	podsync := n.peer(role.Podsync, "0", "", nil)
	w := podsync.Own(subject.Heartbeats)
	w.Put(subject.HeartbeatKey(role.Podsync, "0"), wrapperspb.String(strings.Repeat("y", 12<<10)))
	proctest.Await(t, bound, "another's heartbeat is stored", func() bool { return w.Pending() == 0 })
}

// Headers that are stored with an entry come back with it when it is listed. They say nothing about the listing.
func TestHeadersOfAnEntryAreNotTheListings(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	podsync := n.peer(role.Podsync, "0", "", nil)
	w := podsync.Own(subject.Heartbeats)
	w.Put(subject.HeartbeatKey(role.Podsync, "0"), wrapperspb.String("alive"))
	w.Complete()
	proctest.Await(t, bound, "the heartbeat is stored", func() bool { return w.Pending() == 0 })
	pleg, _ := n.raw(role.PLEG)
	for i, header := range []nats.Header{
		{"Status": {"500"}}, {"Nats-Sequence": {"x"}}, {"Nats-Sequence": {"0"}},
		{"Nats-Num-Pending": {"7"}, "Status": {"204"}},
		{"Nats-Subject": {subject.Entry(subject.Heartbeats, subject.HeartbeatKey(role.Podsync, "0"))}},
	} {
		key := subject.Entry(subject.Heartbeats, subject.HeartbeatKey(role.PLEG, fmt.Sprintf("r%d", i)))
		if _, err := pleg.RequestMsg(&nats.Msg{Subject: key, Header: header, Data: signedAs(t, "pleg.0", "poison")},
			bound); err != nil {
			t.Fatal(err)
		}
	}
	var beats view
	n.peer(role.NodeStatus, "0", "", func(c *bus.Client) { beats = bus.Watch[value](c, subject.Heartbeats, ">", nil) })
	proctest.Await(t, bound, "a later reader is in sync", beats.Synced)
	if m, ok := beats.Get(subject.HeartbeatKey(role.Podsync, "0")); !ok || m.GetValue() != "alive" {
		t.Errorf("podsync's heartbeat is %v", m)
	}
	if all := beats.All(); len(all) != 6 {
		t.Errorf("the reader has %d keys, want podsync's and the five of pleg", len(all))
	}
}

// wire keeps the first connection that a client makes, to write to it past the client.
type wire struct {
	socketDialer
	mu   sync.Mutex
	conn net.Conn
}

func (w *wire) Dial(network, address string) (net.Conn, error) {
	conn, err := w.socketDialer.Dial(network, address)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn == nil {
		w.conn = conn
	}
	return conn, err
}

func (w *wire) first() net.Conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.conn
}

// What is published reaches its readers whether a stream stores it or not. They hold no more of an owner than its part
// of the bucket may be.
func TestReadersHoldNoMoreThanABucket(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var beats view
	reader := n.peer(role.Podsync, "0", "",
		func(c *bus.Client) { beats = bus.Watch[value](c, subject.Heartbeats, ">", nil) })
	proctest.Await(t, bound, "the reader is in sync", beats.Synced)
	bucket, _ := subject.BucketNamed(subject.Heartbeats)

	// Larger than an entry may be: the bus ends the connection. A client refuses it too, once it has heard the bound.
	line := &wire{socketDialer: socketDialer(n.socket())}
	pleg, _ := n.rawThrough(role.PLEG, line)
	large := subject.Entry(subject.Heartbeats, subject.HeartbeatKey(role.PLEG, "large"))
	if _, err := fmt.Fprintf(line.first(), "PUB %s %d\r\n%s\r\n", large, bucket.MaxEntry+1,
		make([]byte, bucket.MaxEntry+1)); err != nil {
		t.Fatal(err)
	}
	proctest.Await(t, bound, "the bus cuts who sends too much",
		func() bool { return !pleg.IsConnected() || pleg.Stats().Reconnects > 0 })

	// Many that are each as large as they may be.
	pleg, _ = n.raw(role.PLEG)
	entry := signedAs(t, "pleg.0", strings.Repeat("x", int(bucket.MaxEntry)-200))
	for i := range 2 * int(bucket.MaxBytes) / len(entry) {
		if err := pleg.Publish(subject.Entry(subject.Heartbeats, subject.HeartbeatKey(role.PLEG, fmt.Sprintf("r%d", i))),
			entry); err != nil {
			t.Fatal(err)
		}
	}
	if err := pleg.FlushTimeout(bound); err != nil {
		t.Fatal(err)
	}
	proctest.Await(t, bound, "the reader rejects some", func() bool {
		return reader.metric("microlet_bus_entries_rejected_total", "bucket", subject.Heartbeats) > 0
	})
	held := 0
	for key, m := range beats.All() {
		held += len(key) + len(m.GetValue())
	}
	if int64(held) > bucket.MaxBytes {
		t.Errorf("the reader holds %d bytes of pleg, more than the %d of its part", held, bucket.MaxBytes)
	}
	if _, ok := beats.Get(subject.HeartbeatKey(role.PLEG, "large")); ok {
		t.Error("the reader holds an entry that is too large")
	}
	podsync := reader.Own(subject.Heartbeats)
	podsync.Put(subject.HeartbeatKey(role.Podsync, "0"), wrapperspb.String("alive"))
	proctest.Await(t, bound, "another's heartbeat is heard",
		func() bool { _, ok := beats.Get(subject.HeartbeatKey(role.Podsync, "0")); return ok })
}

// One service's flood of records drops its own, and not another's.
func TestAFloodOfRecordsDropsItsOwn(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	podsync := n.peer(role.Podsync, "0", "", nil)
	proctest.Await(t, bound, "podsync is connected", podsync.Connected)
	if err := podsync.Store(t.Context(), subject.Outbox(role.Podsync), "one", wrapperspb.String("kept")); err != nil {
		t.Fatal(err)
	}
	pleg, _ := n.raw(role.PLEG)
	for range subject.OutboxMaxMessages + 100 {
		if err := pleg.Publish(subject.Outbox(role.PLEG), []byte("flood")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pleg.Request(subject.Outbox(role.PLEG), []byte("flood"), bound); err != nil {
		t.Fatal(err)
	}
	reader := n.peer(role.NodeStatus, "0", "", nil)
	proctest.Await(t, bound, "nodestatus is connected", reader.Connected)
	record, err := reader.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got wrapperspb.StringValue
	if err := proto.Unmarshal(record.Data, &got); err != nil || got.GetValue() != "kept" {
		t.Errorf("the first record is %q, %v; want podsync's", got.GetValue(), err)
	}
}

// chmodFolders opens or closes the way to the bus's socket for other users.
func (n *node) chmodFolders(mode os.FileMode) {
	n.t.Helper()
	for dir := filepath.Dir(n.socket()); ; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, mode); err != nil {
			n.t.Fatal(err)
		}
		if dir == n.dir {
			return
		}
	}
}

// strangerEnv makes this program a bus that accepts any client, and runs it as a user of no service.
const strangerEnv = "BUS_TEST_STRANGER"

// beStranger serves the bus's socket and says what NATS says first. It reports each client that signs in.
func beStranger(path string) {
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o777)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, isReady)
	for {
		conn, err := l.Accept()
		if err != nil {
			os.Exit(1)
		}
		go func() {
			fmt.Fprintf(conn, "INFO {\"server_id\":\"X\",\"nonce\":\"abc\",\"auth_required\":true,\"headers\":true,"+
				"\"max_payload\":1048576,\"proto\":1}\r\n")
			buf := make([]byte, 4096)
			n, _ := conn.Read(buf)
			if n > 0 {
				fmt.Fprintf(os.Stderr, "heard %q\n", buf[:n])
			}
			fmt.Fprintf(conn, "PONG\r\n")
			_, _ = conn.Read(buf)
		}()
	}
}

// A stranger that serves the socket while the bus is away is not signed in to, and once the bus is back all is well.
func TestAStrangersBusIsLeftAlone(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: a stranger is another user")
	}
	n := newNode(t)
	n.bus.Kill()
	// The folder is the bus's own, so that no other service can do this. Here it can, to see what clients do then.
	n.chmodFolders(0o777)
	if err := os.Remove(n.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(n.dir, "stranger") // where every user reaches it
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, data, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out proctest.Buffer
	stranger := exec.CommandContext(ctx, program)
	stranger.Env = append(os.Environ(), strangerEnv+"="+n.socket())
	stranger.Stderr = &out
	// The bus's own user, in its own cgroup, would be the bus.
	stranger.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	proctest.Await(t, bound, "the stranger serves", func() bool { return strings.Contains(out.String(), isReady) })

	var pods view
	p := n.peer(role.Prober, "0", "", func(c *bus.Client) { pods = bus.Watch[value](c, subject.Pods, ">", nil) })
	proctest.Await(t, bound, "the stranger is counted",
		func() bool { return p.metric("microlet_bus_stranger_connections_total") >= 2 })
	proctest.Await(t, bound, "and reported", func() bool {
		return strings.Contains(p.log.String(), "a stranger serves the bus's socket") &&
			strings.Contains(p.log.String(), "uid=65534")
	})
	if p.Connected() || strings.Contains(out.String(), "CONNECT") {
		t.Errorf("the prober signed in at the stranger's:\n%s", out.String())
	}
	cancel()
	_ = stranger.Wait()
	n.chmodFolders(0o750)
	n.start()
	podsync := n.peer(role.Podsync, "0", "", nil)
	podsync.Own(subject.Pods).Put("a", wrapperspb.String("1"))
	proctest.Await(t, bound, "the bus is heard again", func() bool { _, ok := pods.Get("a"); return ok })
}

// A client that is no service gets no byte from the bus, and many connections of one user take none from the others.
func TestTheDoorRefuses(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: a stranger is another user")
	}
	n := newNode(t)
	n.chmodFolders(0o777)
	if err := os.Chmod(n.socket(), 0o777); err != nil {
		t.Fatal(err)
	}
	hears := func(uid uint32, cgroups ...string) string {
		t.Helper()
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), dialEnv+"="+n.socket())
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 65534}}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range cgroups {
			err = errors.Join(err,
				os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0))
		}
		_, wrote := in.Write([]byte("go\n"))
		err = errors.Join(err, wrote, cmd.Wait())
		if err != nil {
			t.Fatalf("uid %d: %v\n%s", uid, err, &out)
		}
		return out.String()
	}
	if got := hears(65534); strings.Contains(got, "INFO") {
		t.Errorf("a stranger hears %q", got)
	}
	id, err := role.Get(role.PLEG)
	if err != nil {
		t.Fatal(err)
	}
	if got := hears(uint32(id.UID)); !strings.Contains(got, "INFO") {
		t.Errorf("pleg hears %q", got)
	}
	pod := peertest.Cgroup(t, "kubepods/pod0b4ad7d5-4f2c-4a5e-9a4c-6a8c9b3a7f10/c")
	if got := hears(uint32(id.UID), pod...); strings.Contains(got, "INFO") {
		t.Errorf("pleg's user in a pod hears %q", got)
	}

	// Root's, here. Each is held open.
	var greeted int
	for range 100 {
		conn, err := net.Dial("unix", n.socket())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetReadDeadline(time.Now().Add(bound)); err != nil {
			t.Fatal(err)
		}
		if n, _ := conn.Read(make([]byte, 4)); n == 4 {
			greeted++
		}
	}
	if greeted == 0 || greeted == 100 {
		t.Errorf("%d of 100 connections of one user were taken", greeted)
	}
	if got := hears(uint32(id.UID)); !strings.Contains(got, "INFO") {
		t.Errorf("beside them, pleg hears %q", got)
	}
}

// dialEnv makes this program one that prints what a socket says first.
const dialEnv = "BUS_TEST_DIAL"

func beDialer(path string) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	fmt.Printf("%s %v\n", buf[:n], err)
	for _, seed := range strings.Fields(os.Getenv(signInEnv)) {
		fmt.Println(signIn(conn, buf[:n], seed))
	}
	os.Exit(0)
}

// signInEnv has the seeds with which the dialer signs in, one after the other on its one connection.
const signInEnv = "BUS_TEST_SIGN_IN"

// signIn answers the greeting of NATS with a seed, and returns what the bus says to it.
func signIn(conn net.Conn, greeting []byte, seed string) string {
	var info struct {
		Nonce string `json:"nonce"`
	}
	err := json.NewDecoder(bytes.NewReader(bytes.TrimPrefix(greeting, []byte("INFO ")))).Decode(&info)
	if err != nil {
		return err.Error()
	}
	pair, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		return err.Error()
	}
	public, err := pair.PublicKey()
	if err != nil {
		return err.Error()
	}
	signature, err := pair.Sign([]byte(info.Nonce))
	if err != nil {
		return err.Error()
	}
	_, err = fmt.Fprintf(conn, `CONNECT {"verbose":false,"protocol":1,"nkey":%q,"sig":%q}`+"\r\nPING\r\n", public,
		base64.RawURLEncoding.EncodeToString(signature))
	if err != nil {
		return err.Error()
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	return fmt.Sprintf("%s %v", buf[:n], err)
}

// A service that has read another's seed, as one with CAP_DAC_READ_SEARCH can, is not that other on the bus.
func TestAnothersSeedIsWorthNothing(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: each service is another user")
	}
	n := newNode(t)
	n.chmodFolders(0o777)
	if err := os.Chmod(n.socket(), 0o777); err != nil {
		t.Fatal(err)
	}
	id, err := role.Get(role.Stats)
	if err != nil {
		t.Fatal(err)
	}
	seed := func(r role.Role) string {
		data, err := os.ReadFile(bus.SeedFile(n.nkeys(), r))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(data))
	}
	signsIn := func(roles ...role.Role) int {
		t.Helper()
		cmd := exec.Command("/proc/self/exe")
		var seeds []string
		for _, r := range roles {
			seeds = append(seeds, seed(r))
		}
		cmd.Env = append(os.Environ(), dialEnv+"="+n.socket(), signInEnv+"="+strings.Join(seeds, " "))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(id.UID), Gid: role.GroupNode}}
		cmd.Stdin = strings.NewReader("go\n")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		t.Logf("%v: %s", roles, out)
		return strings.Count(string(out), "PONG")
	}
	if got := signsIn(role.Stats); got != 1 {
		t.Errorf("with its own seed stats is answered %d times, want once", got)
	}
	if got := signsIn(role.Podsync); got != 0 {
		t.Error("stats signs in as podsync")
	}
	if got := signsIn(role.Stats, role.Podsync); got != 1 {
		t.Errorf("stats is answered %d times as itself and then as podsync, want once", got)
	}
	proctest.Await(t, bound, "the refusal is logged", func() bool {
		return strings.Contains(n.bus.Log.String(), "the key is another service's: it signs in as podsync")
	})
}
