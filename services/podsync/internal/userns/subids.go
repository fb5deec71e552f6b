package userns

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"time"
)

const (
	// owner is the user with the subordinate IDs for pods, as with the kubelet.
	owner = "kubelet"
	// notFound is getent's exit code for a name that is not there.
	notFound = 2
)

// errSettings is an error that no waiting mends.
var errSettings = errors.New("the node's settings do not allow user namespaces")

// Host is the machine's knowledge of users.
type Host interface {
	// HasUser reports whether there is a user of the name.
	HasUser(ctx context.Context, name string) (bool, error)
	// SubIDs returns what getsubids says of a user's IDs, or of the groups of it; exec.ErrNotFound without the program.
	SubIDs(ctx context.Context, name string, groups bool) (string, error)
}

// subordinate returns the IDs that pods may have: the subordinate ones of the user kubelet. Without such a user, or
// without getsubids, it is every ID but those that the host has for itself, which are as many as a pod has.
func subordinate(ctx context.Context, host Host, perPod uint32) (Range, error) {
	all := Range{First: perPod, Length: uint32(1<<32 - uint64(perPod))}
	there, err := host.HasUser(ctx, owner)
	if err != nil {
		return Range{}, fmt.Errorf("look for the user %s: %w", owner, err)
	}
	if !there {
		return all, nil
	}
	users, err := host.SubIDs(ctx, owner, false)
	if errors.Is(err, exec.ErrNotFound) {
		return all, nil
	}
	if err != nil {
		return Range{}, fmt.Errorf("retrieve the subordinate users of %s: %w", owner, err)
	}
	groups, err := host.SubIDs(ctx, owner, true)
	if err != nil {
		return Range{}, fmt.Errorf("retrieve the subordinate groups of %s: %w", owner, err)
	}
	if users != groups {
		return Range{}, fmt.Errorf("%w: the user %s has the subordinate users %q and groups %q: make /etc/subuid and "+
			"/etc/subgid alike", errSettings, owner, strings.TrimSpace(users), strings.TrimSpace(groups))
	}
	return parseSubIDs(users)
}

// parseSubIDs reads the one line of getsubids, such as "0: kubelet 65536 2147483648".
func parseSubIDs(text string) (Range, error) {
	invalid := func(problem string) error {
		return fmt.Errorf("%w: getsubids %s says %q, which %s: give the user one range in /etc/subuid and /etc/subgid",
			errSettings, owner, text, problem)
	}
	line := strings.Trim(text, "\n")
	fields := strings.Fields(line)
	switch {
	case strings.Contains(line, "\n"):
		return Range{}, invalid("is more than one range")
	case len(fields) != 4:
		return Range{}, invalid("is no line of a number, a name, a first ID and a count")
	}
	first, err := strconv.ParseUint(fields[2], 10, 32)
	if err != nil {
		return Range{}, invalid("has no first ID")
	}
	length, err := strconv.ParseUint(fields[3], 10, 32)
	if err != nil {
		return Range{}, invalid("has no count")
	}
	return Range{First: uint32(first), Length: uint32(length)}, nil
}

// checkSettings reports whether the node's IDs are enough, and begin where the ranges of pods do.
func checkSettings(ids Range, perPod uint32, maxPods int) error {
	switch {
	case ids.First%perPod != 0:
		return fmt.Errorf("%w: the first ID of %s, %d, is no multiple of %d (userNamespaces.idsPerPod)", errSettings, owner,
			ids.First, perPod)
	case ids.First < perPod:
		return fmt.Errorf("%w: the first ID of %s, %d, is less than %d (userNamespaces.idsPerPod): the IDs below are the "+
			"host's own", errSettings, owner, ids.First, perPod)
	case ids.Length%perPod != 0:
		return fmt.Errorf("%w: the count of IDs of %s, %d, is no multiple of %d (userNamespaces.idsPerPod)", errSettings,
			owner, ids.Length, perPod)
	case int(ids.Length/perPod) < maxPods:
		return fmt.Errorf("%w: %d IDs are enough for %d pods of %d (userNamespaces.idsPerPod), and maxPods is %d: give the "+
			"user %s more, or lower one of the two", errSettings, ids.Length, ids.Length/perPod, perPod, maxPods, owner)
	}
	return nil
}

// Machine is this machine.
type Machine struct{}

// HasUser implements Host. It asks getent too, where there is one: it knows the users of directory services.
func (Machine) HasUser(ctx context.Context, name string) (bool, error) {
	_, err := user.Lookup(name)
	if err == nil {
		return true, nil
	}
	if unknown := user.UnknownUserError(""); !errors.As(err, &unknown) {
		return false, err
	}
	_, err = output(ctx, "getent", "passwd", name)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, exec.ErrNotFound), errors.As(err, &exit) && exit.ExitCode() == notFound:
		return false, nil
	}
	return false, err
}

// SubIDs implements Host.
func (Machine) SubIDs(ctx context.Context, name string, groups bool) (string, error) {
	if groups {
		return output(ctx, "getsubids", "-g", name)
	}
	return output(ctx, "getsubids", name)
}

func output(ctx context.Context, program string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, program, args...) //nolint:gosec // getent or getsubids, and no shell reads args
	command.WaitDelay = time.Second                       // for what it has started and left behind
	text, err := command.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && len(exit.Stderr) > 0 {
			return "", fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("%s: %w", program, err)
	}
	return string(text), nil
}
