package kubeletconfig

import (
	"encoding/csv"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Explain turns an error of fs.Parse into a Problem with a remedy: the nearest known flag, or what the value should
// look like. Errors of another kind, such as pflag.ErrHelp, are returned as they are.
func Explain(fs *pflag.FlagSet, err error) error {
	var (
		unknown *pflag.NotExistError
		invalid *pflag.InvalidValueError
		missing *pflag.ValueRequiredError
		syntax  *pflag.InvalidSyntaxError
	)
	switch {
	case errors.As(err, &unknown):
		return explainUnknown(fs, unknown)
	case errors.As(err, &invalid):
		f := invalid.GetFlag()
		p := Problem{
			Field:  "--" + f.Name,
			Value:  invalid.GetValue(),
			Detail: oneLine(invalid.Unwrap()),
			Remedy: "see --help",
		}
		if number := (*strconv.NumError)(nil); errors.As(err, &number) {
			p.Detail, p.Remedy = "the value does not fit", "write a number"
		}
		if list := (*csv.ParseError)(nil); errors.As(err, &list) {
			p.Detail, p.Remedy = "the quotes do not fit", "write values joined by commas, with no quotes"
		}
		if like := example(f.Value.Type()); like != "" {
			p.Detail, p.Remedy = "the value does not fit", "write "+like
		}
		if f.Name == "manifest-url-header" {
			p.Value = "" // it may be a secret, which show masks
			p.Detail, p.Remedy = "the value does not fit", "write name:value"
		}
		return p
	case errors.As(err, &missing):
		name := missing.GetFlag().Name
		return Problem{
			Field:  written(missing.GetSpecifiedName(), missing.GetSpecifiedShortnames()),
			Detail: "the value is missing",
			Remedy: "write --" + name + "=" + strings.ToUpper(missing.GetFlag().Value.Type()),
		}
	case errors.As(err, &syntax):
		return Problem{
			Field: syntax.GetSpecifiedFlag(), Detail: "the flag has no name", Remedy: "write --flag=value, or remove it",
		}
	}
	return err
}

// explainUnknown names what replaced the flag, or the nearest flag.
func explainUnknown(fs *pflag.FlagSet, err *pflag.NotExistError) Problem {
	name := err.GetSpecifiedName()
	p := Problem{
		Field: written(name, err.GetSpecifiedShortnames()), Detail: "the flag is unknown", Remedy: "remove it",
	}
	if err.GetSpecifiedShortnames() != "" {
		return p // one letter is near to any other
	}
	if gone, ok := removedFlags[strings.ReplaceAll(name, "_", "-")]; ok {
		p.Detail, p.Remedy = "the kubelet has no such flag any more", gone
		return p
	}
	var names []string
	fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near := nearest(name, names); near != "" {
		p.Remedy = "did you mean --" + near + "? If not, remove it"
	}
	return p
}

// written is a flag as the command line has it: by its name or by its letter.
func written(name, letters string) string {
	if letters != "" {
		return "-" + name
	}
	return "--" + name
}

// ExplainAll explains err, which fs.Parse of args has returned, and every further mistake in args. What is right is
// set on fs afterwards, some of it more than once.
func ExplainAll(fs *pflag.FlagSet, args []string, err error) error {
	var all []error
	for err != nil {
		all = append(all, Explain(fs, err))
		restoreDefault(err)
		rest := withoutMistake(fs, args, err)
		if len(rest) == len(args) {
			break // it is of no flag
		}
		args = rest
		err = fs.Parse(args)
	}
	return errors.Join(all...)
}

// restoreDefault restores the default of a flag if its value could not be read: pflag sets those of plain types to
// zero, which would cause a second error.
func restoreDefault(err error) {
	invalid := (*pflag.InvalidValueError)(nil)
	if !errors.As(err, &invalid) {
		return
	}
	switch f := invalid.GetFlag(); f.Value.Type() {
	case "bool", "int", "int32", "int64", "duration":
		_ = f.Value.Set(f.DefValue) // it is what the flag was made with
	}
}

// withoutMistake returns args without the flag that err is about, and without its value.
func withoutMistake(fs *pflag.FlagSet, args []string, err error) []string {
	var (
		unknown *pflag.NotExistError
		invalid *pflag.InvalidValueError
		missing *pflag.ValueRequiredError
		name    string
	)
	switch {
	case errors.As(err, &unknown):
		name = unknown.GetSpecifiedName()
	case errors.As(err, &invalid):
		name = invalid.GetFlag().Name
	case errors.As(err, &missing):
		name = missing.GetSpecifiedName()
	}
	normalized := fs.GetNormalizeFunc()
	for i, arg := range args {
		written, value, inline := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !strings.HasPrefix(arg, "-") || normalized(fs, written) != normalized(fs, name) {
			continue
		}
		end := i + 1
		apart := !inline && end < len(args) && !strings.HasPrefix(args[end], "-")
		switch {
		case apart:
			end++
		case inline && invalid != nil && value != invalid.GetValue():
			continue // the flag is there twice, and this one is right
		}
		return slices.Concat(args[:i], args[end:])
	}
	return args
}

// example says what a flag of a plain type takes; types of their own explain themselves.
func example(flagType string) string {
	switch flagType {
	case "bool":
		return "true or false"
	case "int", "int32", "int64", "Level":
		return "a whole number"
	case "duration":
		return "a duration, such as 10s or 2h45m"
	case "mapStringString", "mapStringBool":
		return "key=value, joined by commas"
	}
	return ""
}
