package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Bind shows one folder in the place of another, to the program alone, which gets a mount namespace of its own for
// that. Mounts that the program makes reach the other processes of the machine as far as these share them, such as
// below the node agent's root folder.
type Bind struct {
	From, To string // absolute paths of existing folders
}

// ParseBind reads FROM:TO.
func ParseBind(text string) (Bind, error) {
	from, to, ok := strings.Cut(text, ":")
	if !ok || !filepath.IsAbs(from) || !filepath.IsAbs(to) {
		return Bind{}, fmt.Errorf("%q: write two absolute paths with a colon between them", text)
	}
	return Bind{from, to}, nil
}

// String is the text that ParseBind reads.
func (b Bind) String() string { return b.From + ":" + b.To }

// command is the process that becomes the program. With a Bind, it first is this executable: only a process inside the
// new namespace can mount there.
func (c Config) command() *exec.Cmd {
	if c.Bind == (Bind{}) {
		return exec.Command(c.Command[0], c.Command[1:]...)
	}
	args := append([]string{"--" + insideFlag + "=" + c.Bind.String(), "--"}, c.Command...)
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	return cmd
}

// become mounts the folder and becomes the program. It returns only an error.
func become(b Bind, command []string) error {
	if err := b.mount(); err != nil {
		return fmt.Errorf("show %s at %s to the program alone: %w", b.From, b.To, err)
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	return syscall.Exec(path, command, os.Environ())
}

func (b Bind) mount() error {
	to, err := filepath.EvalSymlinks(b.To)
	if err != nil {
		return err
	}
	list, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	around, err := mountAround(string(list), to)
	if err != nil {
		return err
	}
	// A mount that is shared with the machine's namespace would pass the new one on to it.
	if err := syscall.Mount("", around, "", syscall.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("stop sharing the mounts of %s: %w", around, err)
	}
	if err := syscall.Mount(b.From, to, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return nil
}

// unescape reads a path of mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mountAround returns the mount point that a path is in. The list is that of /proc/self/mountinfo, where the later of
// two mounts hides the earlier.
func mountAround(list, path string) (string, error) {
	const pointField = 4
	around := ""
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) <= pointField {
			continue
		}
		point := unescape.Replace(fields[pointField])
		below := point == "/" || path == point || strings.HasPrefix(path, point+"/")
		if below && len(point) >= len(around) {
			around = point
		}
	}
	if around == "" {
		return "", errors.New("no mount contains it")
	}
	return around, nil
}
