// Package programpages takes the program's pages out of the memory of a process that does not use them any more.
//
// Once a process has started, most of its program is mapped: the code that sets up packages, which runs once, and what
// lies beside it, because the kernel maps 64 KiB around each page that is touched. The kernel takes nothing of it away
// while the node has memory. It all counts as memory of the process, also in its PSS.
package programpages

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mapping is a range of addresses that shows a part of a file.
type mapping struct {
	start, end uintptr
}

// Unmap takes the code and the constants of the program out of this process. They stay in the kernel's cache of files:
// what the process uses again is mapped again, without a read of the disk, and costs some microseconds for 64 KiB.
func Unmap() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	file, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer file.Close()
	found, err := unchanged(file, program)
	if err != nil {
		return err
	}
	for _, m := range found {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("unmap %x-%x of %s: %w", m.start, m.end, program, errno)
		}
	}
	return nil
}

// unchanged reads a list as that in /proc/PID/smaps. It returns what shows parts of the program that can only be read
// and are as in its file. Others have pages with something that was written into memory, such as addresses that were
// set when the program was loaded. To take such a page away is to lose that.
func unchanged(smaps io.Reader, program string) ([]mapping, error) {
	var found []mapping
	var current *mapping
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		line := lines.Text()
		if written, ok := strings.CutPrefix(line, "Anonymous:"); ok {
			if current != nil && strings.TrimSpace(written) == "0 kB" {
				found = append(found, *current)
			}
			current = nil
			continue
		}
		// The first line of a mapping: 00400000-02031000 r-xp 00000000 fe:00 1234   /usr/bin/microlet
		fields := strings.Fields(line)
		if len(fields) < 6 || strings.HasSuffix(fields[0], ":") {
			continue
		}
		current = nil
		if !strings.HasSuffix(line, " "+program) {
			continue
		}
		if access := fields[1]; !strings.HasPrefix(access, "r-") || !strings.HasSuffix(access, "p") {
			continue
		}
		m, err := parse(fields[0])
		if err != nil {
			return nil, err
		}
		current = &m
	}
	return found, lines.Err()
}

// parse reads a range such as 00400000-02031000.
func parse(text string) (m mapping, err error) {
	from, to, _ := strings.Cut(text, "-")
	start, err := strconv.ParseUint(from, 16, strconv.IntSize)
	if err != nil {
		return mapping{}, fmt.Errorf("range of addresses %q: %w", text, err)
	}
	end, err := strconv.ParseUint(to, 16, strconv.IntSize)
	if err != nil {
		return mapping{}, fmt.Errorf("range of addresses %q: %w", text, err)
	}
	return mapping{uintptr(start), uintptr(end)}, nil
}
