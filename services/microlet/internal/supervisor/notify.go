package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/microlet/microlet/services/internal/logkey"
)

// ServiceKey names, in a notification of a process with several services, the one that its READY, STOPPING and STATUS
// are about. The watchdog is always the process's.
const ServiceKey = "X_MICROLET_SERVICE"

// note is one notification.
type note struct {
	ready, stopping, watchdog bool
	status                    string
	hasStatus                 bool
	// service is which of several services of the process the note is about; empty is the process.
	service string
	// store and remove are FDSTORE=1 and FDSTOREREMOVE=1, of the files of this name.
	store, remove bool
	fileName      string
}

// parseNote reads the lines of a datagram. Lines that microlet does not use are passed over, as
// sd_notify(3) asks of a receiver.
func parseNote(datagram string) note {
	var n note
	for line := range strings.SplitSeq(datagram, "\n") {
		key, value, _ := strings.Cut(line, "=")
		switch key {
		case "READY":
			n.ready = n.ready || value == "1"
		case "STOPPING":
			n.stopping = n.stopping || value == "1"
		case "WATCHDOG":
			n.watchdog = n.watchdog || value == "1"
		case "FDSTORE":
			n.store = n.store || value == "1"
		case "FDSTOREREMOVE":
			n.remove = n.remove || value == "1"
		case ServiceKey:
			n.service = printable(value)
		case "FDNAME":
			n.fileName = value
		case "STATUS":
			n.status, n.hasStatus = printable(value), true
		}
	}
	return n
}

// printable is what a terminal shows unchanged, and what a message of protobuf may hold: the text may come from a
// process of an attacker.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unprintable(r) {
			return '?'
		}
		return r
	}, text)
}

// refusalLogPeriod is how often refused notifications of one process are logged.
const refusalLogPeriod = 10 * time.Second

// maxNote is the size of the largest datagram that is read; sd_notify messages are far smaller.
const maxNote = 4096

// A process that notifies more often than noteRate a second waits: a service notifies every few seconds, and what the
// supervisor computes for it is podsync's part of the processors.
const noteRate, noteBurst = 100, 200

// mailbox is the notification socket of one process.
type mailbox struct {
	conn *net.UnixConn
	path string
}

// openMailbox makes the socket so that only uid may send to it.
func openMailbox(path string, uid int) (*mailbox, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("notification socket: %w", err)
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("notification socket: %w", err)
	}
	m := &mailbox{conn: conn, path: path}
	if err := m.prepare(uid); err != nil {
		return nil, errors.Join(fmt.Errorf("notification socket %s: %w", path, err), m.close())
	}
	return m, nil
}

func (m *mailbox) prepare(uid int) error {
	if err := os.Chown(m.path, uid, -1); err != nil {
		return err
	}
	if err := os.Chmod(m.path, 0o600); err != nil {
		return err
	}
	raw, err := m.conn.SyscallConn()
	if err != nil {
		return err
	}
	var optErr error
	err = raw.Control(func(fd uintptr) {
		optErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	})
	return errors.Join(err, optErr)
}

// read passes the notifications of pid on until the mailbox is closed; those of other processes are refused and logged.
// It closes notes. Files that come along go to kept, nil for a process that may keep none.
func (m *mailbox) read(pid int, notes chan<- note, kept *keptFiles, done <-chan struct{}, log *slog.Logger,
	refused func()) {
	defer close(notes)
	// The process may send any number of them. All refusals are counted.
	var refusals, files rate.Sometimes
	limit := rate.NewLimiter(noteRate, noteBurst)
	refusals.First, refusals.Interval, files.First, files.Interval = 1, refusalLogPeriod, 1, refusalLogPeriod
	buf := make([]byte, maxNote)
	// Room for the credentials alone, unless the process may keep files: file descriptors that a sender adds do not fit
	// and are dropped by the kernel.
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred)+kept.room())
	for {
		_ = limit.Wait(context.Background()) // it fails for more than the burst alone
		n, oobn, _, _, err := m.conn.ReadMsgUnix(buf, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			log.Warn("notification not read", logkey.Err, err)
			select {
			case <-done:
				return
			case <-time.After(tick): // an error that stays must not take a whole processor
			}
			continue
		}
		sent := filesOf(oob[:oobn])
		sender, err := senderOf(oob[:oobn])
		if err != nil || int(sender.Pid) != pid {
			closeAll(sent)
			refused()
			refusals.Do(func() {
				log.Warn("notification refused: the sender is not the supervised process", "sender", sender.Pid,
					logkey.UID, sender.Uid, logkey.PID, pid, logkey.Err, err)
			})
			continue
		}
		notified := parseNote(string(buf[:n]))
		if err := kept.take(&notified, sent); err != nil {
			files.Do(func() { log.Warn("file not kept for the successor of the process", logkey.Err, err) })
		}
		select {
		case notes <- notified:
		case <-done:
			return
		}
	}
}

func (m *mailbox) close() error {
	err := m.conn.Close()
	if e := os.Remove(m.path); e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return err
}

// senderOf is the kernel's word for who sent a datagram.
func senderOf(oob []byte) (unix.Ucred, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return unix.Ucred{}, fmt.Errorf("read sender: %w", err)
	}
	for i := range messages {
		if cred, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
			return *cred, nil
		}
	}
	return unix.Ucred{}, errors.New("the datagram has no sender")
}
