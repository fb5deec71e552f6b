// Package pluginsocket opens the sockets of plugins by descriptors, and follows no symbolic link on the way: the
// file that was looked at is the one that is connected to, whatever changes in the folder meanwhile.
package pluginsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Folder is one below which plugins have their sockets.
type Folder struct {
	Path string
	// OneMount refuses what is on another mount than the folder, and a folder that is itself a link.
	OneMount bool
}

// Open opens a path below the folder by its relative name. With O_PATH nothing is read: the descriptor is good for
// fstat, and for connecting.
func (f Folder) Open(relative string, flags uint64) (int, error) {
	first, resolve := unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, uint64(unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
	if f.OneMount {
		first |= unix.O_NOFOLLOW
		resolve |= unix.RESOLVE_NO_XDEV
	}
	root, err := unix.Open(f.Path, first, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: f.Path, Err: err}
	}
	defer func() { _ = unix.Close(root) }()
	fd, err := unix.Openat2(root, relative, &unix.OpenHow{
		Flags: flags | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: resolve,
	})
	if errors.Is(err, unix.ELOOP) {
		return -1, fmt.Errorf("%s: below %s is a symbolic link on the way to it: name the path without links: %w",
			filepath.Join(f.Path, relative), f.Path, err)
	}
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: filepath.Join(f.Path, relative), Err: err}
	}
	return fd, nil
}

// Socket opens the socket of a relative name. The caller closes the descriptor.
func (f Folder) Socket(relative string) (fd int, st unix.Stat_t, err error) {
	fd, err = f.Open(relative, unix.O_PATH)
	if err != nil {
		return -1, st, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, st, errors.Join(err, unix.Close(fd))
	}
	path := filepath.Join(f.Path, relative)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return fd, st, nil
	case unix.S_IFLNK:
		err = fmt.Errorf("%s is a symbolic link: name the socket itself", path)
	default:
		err = fmt.Errorf("%s is not a socket", path)
	}
	return -1, st, errors.Join(err, unix.Close(fd))
}

// Dial connects to the socket at an absolute path below the folder. The connection ends when the plugin has sent 4 MiB.
func (f Folder) Dial(ctx context.Context, path string) (net.Conn, error) {
	fd, err := f.find(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	return Connect(ctx, fd)
}

// DialForLong is Dial without a bound of what the plugin may send. It is for plugins that report for as long as they
// live.
func (f Folder) DialForLong(ctx context.Context, path string) (net.Conn, error) {
	fd, err := f.find(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	return connect(ctx, fd)
}

// find opens the socket at an absolute path below the folder. The caller closes the descriptor.
func (f Folder) find(path string) (fd int, err error) {
	relative, err := filepath.Rel(f.Path, path)
	if err != nil {
		return -1, err
	}
	fd, _, err = f.Socket(relative)
	return fd, err
}

// maxRead is how much a plugin may send on one connection, which is for few calls. An answer has 1 MiB at most, and so
// have its headers and trailers. gRPC itself queues up to 10,000 frames of settings while a plugin does not read the
// answers to them, and each may have 16 KiB.
const maxRead = 4 << 20

// errTooMuch ends a connection.
var errTooMuch = fmt.Errorf("the plugin has sent more than %d bytes on one connection", maxRead)

// Connect connects to the socket behind a descriptor. The connection ends when the plugin has sent 4 MiB.
func Connect(ctx context.Context, fd int) (net.Conn, error) {
	conn, err := connect(ctx, fd)
	if err != nil {
		return nil, err
	}
	return &bounded{Conn: conn, left: maxRead}, nil
}

func connect(ctx context.Context, fd int) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(fd))
}

// bounded is a connection of which left bytes may be read.
type bounded struct {
	net.Conn
	left int
}

// Read implements net.Conn.
func (c *bounded) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, errTooMuch
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}
