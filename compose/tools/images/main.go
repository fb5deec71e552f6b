// Command images writes the container image of microlet for several platforms as one archive:
//
//	images -version v0.1.0 -license LICENSE -o FILE.tar -platform amd64=PROGRAM,BOM -platform arm64=PROGRAM,BOM
//
// The archive is an OCI image layout. The image has the program, its license and nothing else, so it is for the
// services that call no program of the machine: all but podsync. The bill of materials of each platform refers to that
// platform's image. The date of all files is SOURCE_DATE_EPOCH, in seconds. The same programs, version and date give
// the same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// input says what the image has.
type input struct {
	version, license, out string
	platforms             []platform
	date                  time.Time
}

// platform is an architecture as Go names it, and the files for it.
type platform struct{ arch, program, materials string }

func main() {
	in, err := parse(os.Args[1:], os.Getenv("SOURCE_DATE_EPOCH"))
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err == nil {
		err = write(in)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func parse(args []string, epoch string) (input, error) {
	var in input
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	flags.StringVar(&in.version, "version", "", "version as git describe has it")
	flags.StringVar(&in.license, "license", "", "file of the license")
	flags.StringVar(&in.out, "o", "", "the archive to write")
	flags.Func("platform", "ARCH=PROGRAM,BOM: the program for an architecture and its bill of materials; once for each",
		func(value string) error {
			arch, files, _ := strings.Cut(value, "=")
			program, materials, ok := strings.Cut(files, ",")
			if !ok || machines[arch] == 0 || program == "" || materials == "" {
				return errors.New("give ARCH=PROGRAM,BOM with amd64 or arm64")
			}
			in.platforms = append(in.platforms, platform{arch: arch, program: program, materials: materials})
			return nil
		})
	if err := flags.Parse(args); err != nil {
		return in, err
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return in, fmt.Errorf("SOURCE_DATE_EPOCH: give seconds since 1970: %w", err)
	}
	in.date = time.Unix(seconds, 0).UTC()
	return in, in.validate(flags.Args())
}

func (in *input) validate(surplus []string) error {
	var errs []error
	for _, f := range []struct{ flag, value string }{
		{"version", in.version}, {"license", in.license}, {"o", in.out},
	} {
		if f.value == "" {
			errs = append(errs, fmt.Errorf("-%s is empty", f.flag))
		}
	}
	seen := map[string]bool{}
	for _, p := range in.platforms {
		if seen[p.arch] {
			errs = append(errs, fmt.Errorf("-platform has %s twice", p.arch))
		}
		seen[p.arch] = true
	}
	if len(in.platforms) == 0 {
		errs = append(errs, errors.New("-platform is missing"))
	}
	if len(surplus) > 0 {
		errs = append(errs, fmt.Errorf("%q is no flag", surplus[0]))
	}
	return errors.Join(errs...)
}
