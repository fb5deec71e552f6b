package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// uml is User-Mode Linux.
type uml struct {
	dir string
	r   record
}

// rebooter starts the kernel under its own name. For a reboot, User-Mode Linux becomes the program of the name by which
// it was called, with all that it has open: its memory, its link, its disk. The function is read in whole before it
// closes the file from which it comes.
const rebooter = `#!/bin/bash
boot() {
	for fd in /proc/self/fd/*; do
		fd=${fd##*/}
		[ "$fd" -le 2 ] || eval "exec $fd>&-"
	done
	exec -a "$0" %s "$@"
}
boot "$@"
`

// umid is the folder in which User-Mode Linux keeps its process number.
const umid = "uml"

func (u *uml) rebooter() string { return filepath.Join(u.dir, "boot") }

func (u *uml) prepare(context.Context) error {
	// A boot that a power cut ended has left its folder, which the next boot would mistake for that of a live machine.
	if err := os.RemoveAll(filepath.Join(u.dir, umid)); err != nil {
		return err
	}
	return os.WriteFile(u.rebooter(), fmt.Appendf(nil, rebooter, quote([]string{u.r.Assets.Kernel})), 0o700)
}

// program is the kernel: its command line is the program's too.
func (u *uml) program() program {
	args := []string{
		// Programs run without ptrace, by a filter that hands their system calls over.
		"seccomp=on", fmt.Sprintf("mem=%dM", u.r.Memory), fmt.Sprintf("ncpus=%d", u.r.CPUs),
		// What is written goes to the first file, which is made when it is not there.
		"ubd0=" + filepath.Join(u.dir, "disk.cow") + "," + u.r.Assets.Image, "root=/dev/ubda", "rw", "rootfstype=ext4",
		"con=null", "con0=null,fd:1", "ssl=null", "uml_dir=" + u.dir + "/", "umid=" + umid,
		"vec0:transport=tap,ifname=" + u.r.Link.Tap + ",depth=128,gro=1",
		// A panic ends the process, and so is seen at once.
		"panic=-1",
	}
	// The machine's memory is a file of /dev/shm that has no name.
	return program{path: u.rebooter(), args: slices.Concat(args, u.r.parameters()), env: []string{"TMPDIR=/dev/shm"}}
}
