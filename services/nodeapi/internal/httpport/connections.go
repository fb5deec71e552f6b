// Package httpport provides the HTTP servers on the network ports, with limits on connections.
//
// The number of connections is limited. Connections of unauthenticated callers have a limit in total and per
// address, and an old one is closed for a new one, so a new caller is always served. What the requests of these callers
// take has a limit too. Idle connections are closed. A port that cannot be opened is tried again and delays nothing
// else.
package httpport

import (
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of a listener.
type Limits struct {
	// Connections is how many there may be at one time. One more takes the place of one that carries no request, or of
	// one with a request, of the user who has most of these and more than PerUser.
	Connections int
	// PerUser is how many connections a user with a certificate keeps, whatever others need; 0 is all. Those that carry
	// no request any more, such as the streams of an exec, do not count.
	PerUser int
	// Unauthenticated is how many of them may be of callers who are not authenticated; the rest is kept for those who
	// are; 0 keeps none. PerAddress is how many one address may have of these, an IPv6 address with all of its /64, and
	// loopback with all of its addresses. One more takes the place of the oldest: of its own address, or of the one
	// that has most.
	Unauthenticated, PerAddress int
	// Tokens is how many connections may be of callers who are known by their requests alone, as by a token; those of
	// others count as unauthenticated. 0 sets no limit. So callers who may do little do not take all connections.
	Tokens int
	// Bytes is how much memory the requests of callers who are not authenticated may take, estimated; 0 sets no limit.
	// If they take more, that connection is closed which takes most, of the address that takes most.
	Bytes int64
	// CertifiedBytes is how much memory the requests of callers may take who have a certificate, until one of their
	// requests is allowed; 0 sets no limit. Beyond it a connection is closed as for Bytes, of those callers.
	CertifiedBytes int64
	// Idle is how long a connection may pass no byte before it is closed; 0 is for ever.
	Idle time.Duration
}

// Why connections are closed, in metrics and log lines.
const (
	reasonAddress         = "address"         // one address has more than PerAddress
	reasonUnauthenticated = "unauthenticated" // there are more than Unauthenticated
	reasonConnections     = "connections"     // there are more than Connections
	reasonUser            = "user"            // there are more than Connections, and one user has more than PerUser
	reasonMemory          = "memory"          // requests take more than Bytes
	reasonHandshake       = "handshake"       // a handshake has more than maxHandshake
)

const (
	// byteWeight is how much memory a byte of a request may take: a short field of a header becomes an entry of a map
	// and a list.
	byteWeight = 16
	// fieldWeight is what a field of a header takes beside its text. In HTTP/2 it may have come as one byte.
	fieldWeight = 128
	// requestWeight is how much memory a request takes beside its header until its answer is taken: in HTTP/2 it has
	// stacks and buffers, and may have come as a few bytes.
	requestWeight = 16 << 10
	// certificateWeight is how much memory a byte of a client certificate may take for as long as the connection lasts: a
	// name of three bytes becomes an object.
	certificateWeight = 48
	// maxHandshake bounds what a client sends before its TLS handshake is done. A client's certificates have a few KiB.
	maxHandshake = 32 << 10
	// maxCertificates is how many certificates a client may give. Each may have to be tried as the issuer of each other
	// one, which takes milliseconds.
	maxCertificates = 8
	// freeHandshake is how much of a handshake costs nothing, so that the handshake of a client who will be known is not
	// closed because strangers take all that they may. The number of connections bounds it.
	freeHandshake = 4 << 10
)

var errLargeHandshake = errors.New("the client sends more than a TLS handshake has")

// limited is a listener that keeps to limits.
type limited struct {
	net.Listener
	limits Limits
	// closed is called for a connection that is closed for its address's or the port's limit: one that makes
	// room, or one that gets none.
	closed func(address netip.Prefix, reason string, refused bool)

	mu                             sync.Mutex
	addresses                      map[netip.Prefix]*connections
	unauthenticated, authenticated int
	tokens                         int            // those of the authenticated that are not certified
	bytes                          [classes]int64 // of all connections
}

// connections are those of one address, oldest first.
type connections struct {
	unauthenticated, authenticated list.List
	bytes                          [classes]int64
}

// class is the class of a connection that is charged for its requests.
type class int

const (
	// unknown: the caller is not authenticated.
	unknown class = iota
	// certified: the caller has a certificate, and nothing was allowed to him yet.
	certified
	classes
)

// class returns that of a connection, under the owner's lock; ok is false if it is not charged.
func (c *conn) class() (of class, ok bool) {
	switch {
	case !c.authenticated.Load():
		return unknown, true
	case c.certified() && !c.allowed:
		return certified, true
	}
	return unknown, false
}

func limit(l net.Listener, limits Limits, closed func(netip.Prefix, string, bool)) *limited {
	if limits.Unauthenticated == 0 {
		limits.Unauthenticated = limits.Connections
	}
	return &limited{Listener: l, limits: limits, closed: closed, addresses: map[netip.Prefix]*connections{}}
}

// loopback counts as one address, whichever of its addresses a caller has.
var loopback = netip.MustParsePrefix("127.0.0.0/8")

// addressOf is what counts as one caller's address: a caller with an IPv6 address has a /64, and one in the host's
// network has all of loopback.
func addressOf(remote string) netip.Prefix {
	at, _ := netip.ParseAddrPort(remote) // what is no address counts as one
	ip := at.Addr().Unmap()
	if ip.IsLoopback() {
		return loopback
	}
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	address, _ := ip.Prefix(bits)
	return address
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if in := l.admit(c); in != nil {
			return in, nil
		}
		_ = c.Close() // it was never ours
	}
}

func (l *limited) admit(c net.Conn) net.Conn {
	in := &conn{Conn: c, owner: l, address: addressOf(c.RemoteAddr().String())}
	in.used.Store(time.Now().UnixNano())
	l.mu.Lock()
	gives, reason, ok := l.room(in.address)
	if gives != nil {
		l.remove(gives)
	}
	if ok {
		at := l.addresses[in.address]
		if at == nil {
			at = &connections{}
			l.addresses[in.address] = at
		}
		in.place = at.unauthenticated.PushBack(in)
		l.unauthenticated++
	}
	l.mu.Unlock()
	switch {
	case !ok:
		l.closed(in.address, reason, true)
		return nil
	case gives != nil:
		l.closed(gives.address, reason, false)
		_ = gives.Conn.Close() // its user learns it by its own error
	}
	return in
}

// room reports whether another connection may come from an address, and which one it takes the place of.
func (l *limited) room(address netip.Prefix) (gives *conn, reason string, ok bool) {
	full := l.unauthenticated+l.authenticated >= l.limits.Connections
	switch at := l.addresses[address]; {
	case at != nil && at.unauthenticated.Len() >= l.limits.PerAddress:
		return at.unauthenticated.Front().Value.(*conn), reasonAddress, true
	case l.unauthenticated >= l.limits.Unauthenticated, full && l.unauthenticated > 0:
		return l.oldestOfMost(func(c *connections) *list.List { return &c.unauthenticated },
			func(*conn) bool { return true }), reasonUnauthenticated, true
	case full:
		gives = l.oldestOfMost(func(c *connections) *list.List { return &c.authenticated },
			func(c *conn) bool { return !c.busy.Load() })
		if gives != nil {
			return gives, reasonConnections, true
		}
		// Who may do nothing gives way first.
		gives = l.quietestOfMost(func(c *conn) bool { return !c.allowed })
		if gives == nil {
			gives = l.quietestOfMost(func(*conn) bool { return true })
		}
		return gives, reasonUser, gives != nil
	}
	return nil, "", true
}

// quietestOfMost returns the connection with a request that may go and on which nothing has passed for the longest
// time, of the user who has most of these and more than PerUser.
func (l *limited) quietestOfMost(mayGo func(*conn) bool) (quietest *conn) {
	of, most := map[string][]*conn{}, l.limits.PerUser
	if most == 0 {
		return nil
	}
	for _, at := range l.addresses {
		for e := at.authenticated.Front(); e != nil; e = e.Next() {
			if c := e.Value.(*conn); c.user != "" && !c.handedOver.Load() && mayGo(c) {
				of[c.user] = append(of[c.user], c)
			}
		}
	}
	for _, conns := range of {
		if len(conns) > most {
			most = len(conns)
			quietest = slices.MinFunc(conns, func(a, b *conn) int { return cmp.Compare(a.used.Load(), b.used.Load()) })
		}
	}
	return quietest
}

// oldestOfMost returns the oldest connection that may go, of the address that has most of its kind.
func (l *limited) oldestOfMost(kind func(*connections) *list.List, mayGo func(*conn) bool) (oldest *conn) {
	most := 0
	for _, at := range l.addresses {
		of := kind(at)
		if of.Len() <= most {
			continue
		}
		for e := of.Front(); e != nil; e = e.Next() {
			if c := e.Value.(*conn); mayGo(c) {
				oldest, most = c, of.Len()
				break
			}
		}
	}
	return oldest
}

// allow notes that a request of the connection was allowed.
func (l *limited) allow(c *conn) {
	l.authenticate(c, "")
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.place != nil && c.certified() {
		l.add(c, -c.bytes)
		c.allowed = true
	}
}

// authenticate keeps a connection's place from those who are not authenticated. user is that of the certificate; empty
// if there is none.
func (l *limited) authenticate(c *conn, user string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	full := user == "" && l.limits.Tokens > 0 && l.tokens >= l.limits.Tokens
	if c.place == nil || c.authenticated.Load() || full {
		return
	}
	at := l.addresses[c.address]
	l.add(c, -c.bytes)
	if c.user = user; !c.certified() {
		l.tokens++
	}
	at.unauthenticated.Remove(c.place)
	c.place = at.authenticated.PushBack(c)
	c.authenticated.Store(true)
	l.unauthenticated--
	l.authenticated++
}

// remove drops a connection, once.
func (l *limited) remove(c *conn) {
	if c.place == nil {
		return
	}
	at := l.addresses[c.address]
	l.add(c, -c.bytes)
	if c.authenticated.Load() {
		at.authenticated.Remove(c.place)
		l.authenticated--
		if !c.certified() {
			l.tokens--
		}
	} else {
		at.unauthenticated.Remove(c.place)
		l.unauthenticated--
	}
	c.place = nil
	if at.unauthenticated.Len()+at.authenticated.Len() == 0 {
		delete(l.addresses, c.address)
	}
}

// add changes what the requests of a connection take.
func (l *limited) add(c *conn, bytes int64) {
	if of, ok := c.class(); ok {
		c.bytes += bytes
		l.addresses[c.address].bytes[of] += bytes
		l.bytes[of] += bytes
	}
}

// charge adds to what the requests of a connection take, and closes connections while all of its class take too much.
func (l *limited) charge(c *conn, bytes int64) {
	if c.handedOver.Load() {
		return
	}
	var excess []*conn
	l.mu.Lock()
	limits := [classes]int64{unknown: l.limits.Bytes, certified: l.limits.CertifiedBytes}
	if of, ok := c.class(); ok && c.place != nil && limits[of] > 0 {
		l.add(c, bytes)
		for l.bytes[of] > limits[of] {
			largest := l.largestOfMost(of)
			l.remove(largest)
			excess = append(excess, largest)
		}
	}
	l.mu.Unlock()
	for _, c := range excess {
		l.closed(c.address, reasonMemory, false)
		_ = c.Conn.Close() // its user learns it by its own error
	}
}

// largestOfMost returns the connection of a class that takes most, of the address that takes most. Some do.
func (l *limited) largestOfMost(of class) (largest *conn) {
	var most *connections
	for _, at := range l.addresses {
		if most == nil || at.bytes[of] > most.bytes[of] {
			most = at
		}
	}
	kind := map[class]*list.List{unknown: &most.unauthenticated, certified: &most.authenticated}[of]
	for e := kind.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*conn); largest == nil || c.bytes > largest.bytes {
			largest = c
		}
	}
	return largest
}

// settle says that no request is under way.
func (l *limited) settle(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.place != nil {
		l.add(c, c.kept-c.bytes)
	}
}

// reap closes connections that nothing passed for too long, until the context ends; then all, streams
// too, of which the HTTP server knows nothing any more.
func (l *limited) reap(ctx context.Context) {
	var tick <-chan time.Time
	if l.limits.Idle > 0 {
		t := time.NewTicker(max(l.limits.Idle/8, time.Second))
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-ctx.Done():
			l.closeOlder(0)
			return
		case <-tick:
			l.closeOlder(l.limits.Idle)
		}
	}
}

func (l *limited) closeOlder(idle time.Duration) {
	var old []*conn
	l.mu.Lock()
	for _, at := range l.addresses {
		for _, of := range []*list.List{&at.unauthenticated, &at.authenticated} {
			for e := of.Front(); e != nil; e = e.Next() {
				if c := e.Value.(*conn); time.Since(time.Unix(0, c.used.Load())) >= idle {
					old = append(old, c)
				}
			}
		}
	}
	l.mu.Unlock()
	for _, c := range old {
		_ = c.Close() // its user learns it by its own error
	}
}

// conn notes when something passed last, and which caller it belongs to.
type conn struct {
	net.Conn
	owner   *limited
	address netip.Prefix
	place   *list.Element // under owner's lock; nil once it was removed
	bytes   int64         // what its requests take, and kept, under owner's lock
	kept    int64         // what it takes without a request, from the end of the handshake
	used    atomic.Int64
	// handshake: what comes is no request yet. So much has come. Both belong to the reader.
	handshake bool
	came      int64
	// busy: a request is under way, or the connection was handed over.
	busy          atomic.Bool
	authenticated atomic.Bool
	// user is that of the certificate that authenticates the caller; empty without one. It is set before requests are
	// read.
	user string
	memo Memo
	// allowed: a request was allowed to a caller who is certified. It is under owner's lock.
	allowed bool
	// credentials are those of the last request that was allowed.
	credentials atomic.Pointer[credentials]
	// handedOver: what comes is no request any more.
	handedOver atomic.Bool
}

// certified reports whether a certificate authenticates the caller.
func (c *conn) certified() bool { return c.user != "" }

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.used.Store(time.Now().UnixNano())
		costs := int64(n)
		if c.handshake {
			c.came += costs
			costs = min(costs, max(c.came-freeHandshake, 0))
		}
		c.owner.charge(c, byteWeight*costs)
		if c.handshake && c.came > maxHandshake {
			return 0, errLargeHandshake
		}
	}
	return n, err
}

// shakenHands says that the handshake is done, and what certificates the client gave.
func (c *conn) shakenHands(certificates []*x509.Certificate) {
	c.handshake = false
	for _, certificate := range certificates {
		c.kept += certificateWeight * int64(len(certificate.Raw))
	}
	c.owner.settle(c)
	c.owner.charge(c, 0) // it may be too much by now
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if n > 0 {
		c.used.Store(time.Now().UnixNano())
	}
	return n, err
}

func (c *conn) Close() error {
	c.owner.mu.Lock()
	c.owner.remove(c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

// under returns the connection that TLS is spoken on.
func under(c net.Conn) *conn {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	in, _ := c.(*conn)
	return in
}

// follow notes what the HTTP server does with a connection.
func follow(c net.Conn, state http.ConnState) {
	in := under(c)
	if in == nil {
		return
	}
	in.busy.Store(state == http.StateActive || state == http.StateHijacked)
	switch state {
	case http.StateHijacked:
		in.handedOver.Store(true)
	case http.StateIdle:
		in.owner.settle(in)
	}
}

// AddressOf returns what counts as the address of a request's caller.
func AddressOf(r *http.Request) netip.Prefix { return addressOf(r.RemoteAddr) }
