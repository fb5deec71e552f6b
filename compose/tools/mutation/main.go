// Command mutation measures how many faults the tests of a package notice.
//
// It copies a package of this repository and adds a fault at each condition, comparison, sum and statement. An
// environment variable enables one fault. It builds the tests once and runs them once per fault. It prints the
// faults that no test noticed, and the share of those that a test noticed. It fails if a test missed a fault, unless
// the file of explained faults lists the fault as one that cannot be observed.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	explained := flag.String("explained", "",
		"file of survivors that are explained: a line each, the survivor and behind a tab the reason")
	patience := flag.Duration("patience", time.Minute,
		"how long one run of the tests may take; a fault that makes them take longer is noticed")
	parallel := flag.Int("parallel", runtime.NumCPU(), "how many faults are tried at one time")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: mutation [flags] FOLDER\n\nFOLDER is a package's.")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, flag.Arg(0), *explained, *patience, *parallel); err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, folder, explainedFile string, patience time.Duration, parallel int) error {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	reasons, err := readExplained(explainedFile)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "mutation")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	faults, overlay, err := plant(folder, scratch)
	if err != nil {
		return err
	}
	binary := filepath.Join(scratch, "tests")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary, ".")
	build.Dir = folder
	if said, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the tests with %d faults: %w\n%s", len(faults), err, said)
	}
	if noticed, said := try(ctx, folder, binary, 0, 5*patience); noticed {
		return fmt.Errorf("the tests fail without any fault:\n%s", said)
	}
	fmt.Fprintf(out, "%d faults in %s\n", len(faults), filepath.Base(folder))
	survived := make([]bool, len(faults))
	places := make(chan struct{}, parallel)
	var all sync.WaitGroup
	for i := range faults {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			noticed, _ := try(ctx, folder, binary, i+1, patience)
			survived[i] = !noticed
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return report(out, faults, survived, reasons)
}

func report(out io.Writer, faults []string, survived []bool, reasons map[string]string) error {
	killed, equivalent, open := 0, 0, 0
	for i, fault := range faults {
		switch reason, known := reasons[fault]; {
		case !survived[i]:
			killed++
			if known {
				fmt.Fprintf(out, "noticed after all, take it off the list: %s\n", fault)
			}
		case known:
			equivalent++
			fmt.Fprintf(out, "explained  %s (%s)\n", fault, reason)
		default:
			open++
			fmt.Fprintf(out, "SURVIVED   %s\n", fault)
		}
	}
	fmt.Fprintf(out, "noticed %d of %d (%.1f %%), %d explained, %d open\n", killed, len(faults),
		100*float64(killed)/float64(max(len(faults), 1)), equivalent, open)
	if open > 0 {
		return fmt.Errorf("%d faults were not noticed: write a test for each, or explain it", open)
	}
	return nil
}

// try runs the tests with one fault, 0 for none, and reports whether they noticed.
func try(ctx context.Context, folder, binary string, fault int, patience time.Duration) (noticed bool, out []byte) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	test := exec.CommandContext(ctx, binary, "-test.failfast")
	test.Dir = folder
	test.Env = append(os.Environ(), fmt.Sprintf("MUTANT=%d", fault))
	out, err := test.CombinedOutput()
	return err != nil, out
}

// plant writes the copies and the overlay that puts them in place of the package's files.
func plant(folder, scratch string) (faults []string, overlay string, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, "", err
	}
	slices.Sort(files)
	replace := map[string]string{}
	name := ""
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, "", err
		}
		planted, pkg, err := mutate(filepath.Base(file), source, &faults)
		if err != nil {
			return nil, "", err
		}
		name = pkg
		replace[file] = filepath.Join(scratch, filepath.Base(file))
		if err := os.WriteFile(replace[file], planted, 0o600); err != nil {
			return nil, "", err
		}
	}
	if name == "" {
		return nil, "", errors.New(folder + " has no Go files: name a package's folder")
	}
	added := filepath.Join(folder, "mutant_switch.go")
	replace[added] = filepath.Join(scratch, "mutant_switch.go")
	if err := os.WriteFile(replace[added], []byte("package "+name+"\n"+switchSource), 0o600); err != nil {
		return nil, "", err
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, "", err
	}
	overlay = filepath.Join(scratch, "overlay.json")
	return faults, overlay, os.WriteFile(overlay, text, 0o600)
}

func readExplained(file string) (map[string]string, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	reasons := map[string]string{}
	for line := range bytes.Lines(text) {
		fault, reason, found := strings.Cut(strings.TrimSpace(string(line)), "\t")
		if fault == "" || strings.HasPrefix(fault, "#") {
			continue
		}
		if !found || reason == "" {
			return nil, fmt.Errorf("%s: %q has no reason: write it behind a tab", file, fault)
		}
		reasons[fault] = reason
	}
	return reasons, nil
}

// switchSource is what the faulty copies call.
const switchSource = `
import (
	"os"
	"strconv"
)

var mutantNow, _ = strconv.Atoi(os.Getenv("MUTANT"))

func mutantOn(n int) bool { return n == mutantNow }

func mutantNot(n int, b bool) bool { return b != mutantOn(n) }

type mutantValue interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float64 | ~string
}

func mutantFirst[T mutantValue](n int, first, all T) T {
	if mutantOn(n) {
		return first
	}
	return all
}
`
