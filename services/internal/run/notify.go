package run

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// The states of systemd's notification protocol that microlet speaks; see sd_notify(3).
const (
	// NotifyReady says that the service does its work.
	NotifyReady = "READY=1"
	// NotifyStopping says that the service ends on purpose.
	NotifyStopping = "STOPPING=1"
	// NotifyWatchdog says that the service's own loops do not hang.
	NotifyWatchdog = "WATCHDOG=1"
	// NotifyStatus begins a line for the operator.
	NotifyStatus = "STATUS="
)

// notifyTimeout bounds a notification. A supervisor that is itself stopped lets its queue fill, and
// must not hold up those whom it supervises.
const notifyTimeout = 500 * time.Millisecond

// Notifier sends notifications to the supervisor that started this process. One without an address
// sends nothing, so a service that was started by hand needs no special case.
type Notifier struct {
	address  string
	watchdog time.Duration
}

// NewNotifier reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, and removes them from the
// environment: a child of this process must not speak in its name.
func NewNotifier() (*Notifier, error) {
	n := &Notifier{address: os.Getenv("NOTIFY_SOCKET")}
	usec, pid := os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if err := os.Unsetenv(name); err != nil {
			return nil, fmt.Errorf("unset %s: %w", name, err)
		}
	}
	if usec == "" || n.address == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return n, nil
	}
	v, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || v <= 0 {
		return nil, fmt.Errorf("WATCHDOG_USEC is %q: it must be a positive number of microseconds", usec)
	}
	n.watchdog = time.Duration(v) * time.Microsecond
	return n, nil
}

// Watchdog is the longest that the supervisor lets pass between two NotifyWatchdog; 0 when it does
// not watch.
func (n *Notifier) Watchdog() time.Duration { return n.watchdog }

// Notify sends the states as one datagram. It returns nil when nothing listens to this process, and gives up after half
// a second.
func (n *Notifier) Notify(states ...string) error {
	if n.address == "" {
		return nil
	}
	for _, s := range states {
		if strings.ContainsRune(s, '\n') {
			return errors.New("a notification is one line; replace the line breaks in it")
		}
	}
	// A leading @ is an abstract address; the net package knows it.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.address, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify %s: %w", n.address, err)
	}
	defer func() { _ = conn.Close() }() // a datagram is sent or not; closing adds nothing
	if err := conn.SetWriteDeadline(time.Now().Add(notifyTimeout)); err != nil {
		return fmt.Errorf("notify %s: %w", n.address, err)
	}
	if _, err := conn.Write([]byte(strings.Join(states, "\n"))); err != nil {
		return fmt.Errorf("notify %s: %w", n.address, err)
	}
	return nil
}
