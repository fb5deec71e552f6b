package test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// networkEnv says to the test's binary that it is in a network namespace of its own.
const networkEnv = "MICROLET_TEST_NETWORK"

// callerAddress is one of the addresses that callers have. Those of loopback count as one.
func callerAddress(i int) string { return fmt.Sprintf("198.51.100.%d", i) }

// inNetwork runs the tests in a network namespace of their own, where they add addresses, and returns their exit code.
func inNetwork() int {
	runtime.LockOSThread() // whose end would kill the tests
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), networkEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintf(os.Stderr, "run the tests in a network namespace, as root: %v\n", err)
		return 1
	}
	return 0
}

// addAddresses gives the namespace loopback, and the addresses of callers.
func addAddresses() error {
	for _, args := range [][]string{{"link", "set", "lo", "up"},
		{"route", "add", "local", "198.51.100.0/24", "dev", "lo"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
	}
	return nil
}
