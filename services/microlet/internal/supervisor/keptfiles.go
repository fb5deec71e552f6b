package supervisor

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// fileName is what a kept file may be called: systemd's FDNAME, without what an environment would have to quote.
var fileName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`) })

// keptFiles are the files that a process has its supervisor keep for its successor. They stay open until the process
// removes them, or the supervisor ends. A nil one keeps none.
type keptFiles struct {
	most int

	mu    sync.Mutex
	names []string
	files []*os.File
}

// room is what the descriptors of one notification take of its control message.
func (k *keptFiles) room() int {
	if k == nil {
		return 0
	}
	return unix.CmsgSpace(4 * k.most)
}

// take does what the notification asks for. Files that it did not ask to keep are closed.
func (k *keptFiles) take(n *note, files []*os.File) error {
	if !n.store && !n.remove {
		closeAll(files)
		return nil
	}
	if k == nil {
		closeAll(files)
		return errors.New("the process may keep no files")
	}
	if !fileName().MatchString(n.fileName) {
		closeAll(files)
		return fmt.Errorf("FDNAME is %q: want letters, digits, dots, underscores and dashes, 64 at most", n.fileName)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if n.remove {
		k.remove(n.fileName)
		closeAll(files)
		return nil
	}
	if len(k.files)+len(files) > k.most {
		closeAll(files)
		return fmt.Errorf("there would be %d files: at most %d are kept", len(k.files)+len(files), k.most)
	}
	for _, f := range files {
		k.names, k.files = append(k.names, n.fileName), append(k.files, f)
	}
	return nil
}

func (k *keptFiles) remove(name string) {
	var names []string
	var files []*os.File
	for i, f := range k.files {
		if k.names[i] == name {
			_ = f.Close()
			continue
		}
		names, files = append(names, k.names[i]), append(files, f)
	}
	k.names, k.files = names, files
}

// all returns the files and their names.
func (k *keptFiles) all() ([]*os.File, []string) {
	if k == nil {
		return nil, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.files), slices.Clone(k.names)
}

// filesOf returns the files that came with a datagram.
func filesOf(oob []byte) []*os.File {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var files []*os.File
	for i := range messages {
		descriptors, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range descriptors {
			files = append(files, os.NewFile(uintptr(fd), "kept for a process"))
		}
	}
	return files
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
