package supervisor

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// writing is what landlock(7) knows of changes to a file system, by the first version that knows it.
var writing = map[int]uint64{
	1: unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM,
	2: unix.LANDLOCK_ACCESS_FS_REFER,
	3: unix.LANDLOCK_ACCESS_FS_TRUNCATE,
}

// minLandlock is the version that can allow a file to move from one folder to another, as the bus's store does
// (Linux 5.19). The one before denies it everywhere.
const minLandlock = 2

// writableFiles are files beside the folders of a process that it may write to: none of them takes anything of a disk.
var writableFiles = []string{"/dev/null", "/proc"}

// confine has the calling thread, and the processes that it starts, write below these folders only. Otherwise a process
// of any user can fill the disk through folders such as /var/tmp, and one that may search every folder can write to
// those of pods. What is open already stays as it is.
func confine(folders []string) error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || version < minLandlock {
		return fmt.Errorf("the kernel has no Landlock of version %d or later", minLandlock)
	}
	var handled uint64
	for since, access := range writing {
		if since <= int(version) {
			handled |= access
		}
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: handled}
	//nolint:gosec // the kernel reads the structure during the call
	set, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)),
		unsafe.Sizeof(attr.Handled_access_fs), 0)
	if errno != 0 {
		return fmt.Errorf("landlock_create_ruleset: %w", errno)
	}
	defer func() { _ = unix.Close(int(set)) }()
	for _, folder := range folders {
		if err := allow(set, folder, handled); err != nil {
			return err
		}
	}
	const toFiles = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	for _, file := range writableFiles {
		if err := allow(set, file, handled&toFiles); err != nil {
			return err
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, set, 0, 0); errno != 0 {
		return fmt.Errorf("landlock_restrict_self: %w", errno)
	}
	return nil
}

// allow adds to a set of rules what may be done at a path and below.
func allow(set uintptr, path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	//nolint:gosec // the kernel reads the structure during the call
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, set, unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("landlock_add_rule for %s: %w", path, errno)
	}
	return nil
}
