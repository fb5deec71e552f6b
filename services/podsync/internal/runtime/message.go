package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"
	"k8s.io/cri-client/pkg/logs"

	"github.com/microlet/microlet/services/podsync/internal/labels"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// The kubelet's bounds of a termination message.
const (
	// maxMessageBytes is how much of the end of the message file is shown.
	maxMessageBytes = 4096
	// maxMessageLogBytes and maxMessageLogLines bound what is taken from the log instead.
	maxMessageLogBytes = 2048
	maxMessageLogLines = 80
	// reasonCannotRun marks a container that never ran, so that it has no log.
	reasonCannotRun = "ContainerCannotRun"
)

// terminationMessage returns what an exited container left as its last words: the end
// of its terminationMessagePath file or, if the container asked for that and failed, of
// its log. final is false when reading failed in a way that may not last; the message
// then says so, as the kubelet's does.
func terminationMessage(ctx context.Context, c *pod.Container) (message string, final bool) {
	fallback := c.Annotations[labels.ContainerTerminationMessagePolicy] == string(
		v1.TerminationMessageFallbackToLogsOnError) &&
		c.ExitCode != 0 && c.Reason != reasonCannotRun
	if file := messageFile(c); file != "" {
		text, err := readEnd(file, maxMessageBytes)
		switch {
		case err == nil && text != "":
			return text, true
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return fmt.Sprintf("Error on reading termination log %s: %v", file, err), false
		}
	}
	if !fallback {
		return "", true
	}
	text, err := readLogEnd(ctx, c.LogPath)
	if err != nil {
		return fmt.Sprintf("Error on reading termination message from logs: %v", err), false
	}
	return text, true
}

// messageFile returns the file on the host that is mounted at the container's
// terminationMessagePath, or "".
func messageFile(c *pod.Container) string {
	at := c.Annotations[labels.ContainerTerminationMessagePath]
	if at == "" {
		return ""
	}
	if !path.IsAbs(at) {
		at = "/" + at
	}
	for _, m := range c.Mounts {
		if m.GetContainerPath() == at {
			return m.GetHostPath()
		}
	}
	return ""
}

// readEnd returns the last limit bytes of a file. The file was the container's to
// write, so only a regular one is read, and opening it never blocks: a FIFO put in its
// place must not hold podsync.
func readEnd(name string, limit int64) (_ string, err error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("it is not a regular file")
	}
	offset := max(info.Size()-limit, 0)
	data, err := io.ReadAll(io.NewSectionReader(f, offset, limit))
	return string(data), err
}

// readLogEnd returns the end of a CRI log: at most 80 lines and 2048 bytes.
func readLogEnd(ctx context.Context, name string) (string, error) {
	lines := int64(maxMessageLogLines)
	end := &tailBuffer{limit: maxMessageLogBytes}
	opts := &logs.LogOptions{TailLines: &lines}
	if err := logs.ReadLogs(ctx, name, "", opts, nil, end, end); err != nil {
		return "", err
	}
	return string(end.data), nil
}

// tailBuffer keeps the last limit bytes of what is written to it.
type tailBuffer struct {
	limit int
	data  []byte
}

// Write implements io.Writer.
func (b *tailBuffer) Write(p []byte) (int, error) {
	b.data = append(b.data, p[max(len(p)-b.limit, 0):]...)
	b.data = b.data[max(len(b.data)-b.limit, 0):]
	return len(p), nil
}
