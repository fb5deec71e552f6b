// Package notregular puts what is no regular file in the place of one.
package notregular

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// driverless is a number of devices that no driver has: to open one fails with ENXIO, so that a test can see it.
const driverless = 261

// Each calls try with a FIFO, a socket, and two devices at the path, one after another, and removes each.
func Each(t *testing.T, path string, try func(t *testing.T)) {
	t.Helper()
	for name, make := range map[string]func() error{
		"FIFO":             func() error { return unix.Mkfifo(path, 0o666) },
		"socket":           func() error { return listen(path) },
		"character device": func() error { return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(driverless, 7))) },
		"block device":     func() error { return unix.Mknod(path, unix.S_IFBLK|0o666, int(unix.Mkdev(driverless, 7))) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			if err := make(); err != nil {
				t.Fatal(err)
			}
			try(t)
		})
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

// listen leaves the socket of a server that has ended.
func listen(path string) error {
	server, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	server.SetUnlinkOnClose(false)
	return server.Close()
}
