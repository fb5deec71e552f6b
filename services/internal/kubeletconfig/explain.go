package kubeletconfig

import (
	"errors"
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
	)
	switch {
	case errors.As(err, &unknown):
		p := Problem{Field: "--" + unknown.GetSpecifiedName(), Detail: "the flag is unknown", Remedy: "remove it"}
		var names []string
		fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := nearest(unknown.GetSpecifiedName(), names); near != "" {
			p.Remedy = "write --" + near + " if that was meant, otherwise remove it"
		}
		return p
	case errors.As(err, &invalid):
		f := invalid.GetFlag()
		p := Problem{Field: "--" + f.Name, Value: invalid.GetValue(), Detail: oneLine(invalid.Unwrap()), Remedy: "see --help"}
		if like := example(f.Value.Type()); like != "" {
			p.Detail, p.Remedy = "the value does not fit", "write "+like
		}
		if f.Name == "manifest-url-header" {
			p.Value = "" // it may be a secret, which show masks
			p.Detail, p.Remedy = "the value does not fit", "write name:value"
		}
		return p
	case errors.As(err, &missing):
		return Problem{Field: "--" + missing.GetSpecifiedName(), Detail: "the value is missing", Remedy: "write --" + missing.GetSpecifiedName() + "=" + strings.ToUpper(missing.GetFlag().Value.Type())}
	}
	return err
}

// example says what a flag of a plain type takes; types of their own explain themselves.
func example(flagType string) string {
	switch flagType {
	case "bool":
		return "true or false"
	case "int32", "int64", "Level":
		return "a whole number"
	case "duration":
		return "a duration, such as 10s or 2h45m"
	case "mapStringString", "mapStringBool":
		return "key=value, joined by commas"
	}
	return ""
}
